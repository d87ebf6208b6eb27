"""``laconic methods``: the methods, their settings, their papers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import get_args

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.cli.runs import print_json
from laconic.codecs import WORDS
from laconic.costs import COSTS
from laconic.lab.method_words import about
from laconic.methods import METHODS
from laconic.methods.parts import Carrier


@dataclass(frozen=True, kw_only=True)
class Methods:
    """List the methods, what each sends, its settings with their defaults, and its paper."""

    json: bool = False
    """Print it as JSON."""

    def run(self) -> None:
        """Print the list."""
        known = [about(name) for name in METHODS]
        if self.json:
            print_json({"methods": [asdict(one) for one in known]})
            return
        table = Table(box=box.SIMPLE, show_lines=True)
        for heading in ("method", "what it does", "settings", "paper"):
            table.add_column(heading, overflow="fold")
        for one in known:
            settings = "\n".join(f"{key}={value}" for key, value in one.settings.items())
            table.add_row(f"[bold]{one.name}[/]", one.what, settings or "none", one.paper)
        others = [name for name in COSTS if name != "bits"]
        console = Console()
        console.print(table)
        console.print(
            "Write settings behind the name: --method topk:density=0.001:memory=update\n"
            "How a local method sends is a method too, with + for the colons: --method "
            "celgc:every=16:send=topk+density=0.01\n"
            f"How values are written is a setting of most: --method topk:values=int4, or {', '.join(WORDS)}\n"
            f"How they travel is another: --method topk:exchange=sharded, or {', '.join(get_args(Carrier))}\n"
            "What cat weighs T against, the entries that a rank sends: --method cat:cost=bits, or "
            f"{', '.join(others)}; seconds are those of the link as fitted while training",
            highlight=False,
            soft_wrap=True,
        )

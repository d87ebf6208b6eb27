"""The ``laconic`` command. What it is made of is imported when a command runs: ``--version`` needs no extra."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from laconic.cli.versions import show, wanted

NEEDED = ("plotly", "rich", "sklearn", "tyro")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command that the words name; wrong input ends with an error of one line and exit code 2."""
    words = sys.argv[1:] if args is None else args
    if wanted(words):
        show(json="--json" in words)
        return
    try:
        from laconic.cli.commands import run
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in NEEDED:
            raise
        print(f'laconic: the command line needs {missing}: pip install "laconic[lab]"', file=sys.stderr)
        raise SystemExit(2) from None
    run(words)

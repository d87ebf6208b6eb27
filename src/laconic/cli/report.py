"""``laconic report``: the page again, from saved runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from laconic.cli.runs import print_json
from laconic.lab.report.page import write_page
from laconic.lab.report.read import read_runs


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make the page of a comparison again, or one page of several runs: laconic report runs/first runs/second."""

    folders: Positional[tuple[Path, ...]]
    """Folders that laconic train or laconic compare have written."""
    out: Path | None = None
    """The page to write; by default report.html in the first folder."""
    title: str | None = None
    """Title of the page; by default the task, the data and the number of methods."""
    json: bool = False
    """Print the page's path and the methods as JSON."""

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("report wants a folder or more, got none. Write: laconic report runs/first.")

    def run(self) -> None:
        """Write the page, and print where it is."""
        runs = read_runs(self.folders)
        page = write_page(runs, self.out or self.folders[0] / "report.html", title=self.title)
        if self.json:
            print_json({"report": str(page), "methods": [run.label for run in runs]})
        else:
            # Paths are printed as they are: in one line, with nothing taken for markup.
            Console(soft_wrap=True).print(f"page: {page.resolve()}", markup=False, highlight=False)

"""``laconic data``: what data there is, fetched from its public home or imported from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tyro.conf import Positional, arg, subcommand

from laconic.cli.runs import print_json
from laconic.lab.data.catalogue import CATALOGUE, Entry, entry_of
from laconic.lab.data.content import UNITS
from laconic.lab.data.fetch import Line, get
from laconic.lab.data.home import default_home
from laconic.lab.data.imports import import_set
from laconic.lab.data.store import About, is_there, size_of

_CHECKED = {
    "digest": "content checked",
    "count": "number checked, no digest is known",
    "held out": "held out of train",
    "nothing": "not checked",
}


@dataclass(frozen=True, kw_only=True)
class List:
    """List the data sets: their kind, what they are, whether they are there, and their size."""

    data_home: Path = field(default_factory=default_home)
    """Where data is kept. Default: $LACONIC_DATA, else $XDG_DATA_HOME/laconic, else ~/.local/share/laconic."""
    json: bool = False
    """Print it as JSON."""

    def run(self) -> None:
        """Print the list."""
        if self.json:
            print_json(
                {"home": str(self.data_home), "sets": [_listed(one, self.data_home) for one in CATALOGUE.values()]}
            )
            return
        table = Table(box=box.SIMPLE)
        for heading in ("name", "kind", "what"):
            table.add_column(heading, overflow="fold")
        table.add_column("there")
        table.add_column("size", justify="right", no_wrap=True)
        for entry in CATALOGUE.values():
            there = is_there(entry.name, self.data_home)
            size = f"{size_of(entry.name, self.data_home) / 1e6:,.1f} MB" if there else ""
            word = "built in" if entry.embedded else "yes" if there else "no"
            table.add_row(f"[bold]{entry.name}[/]", entry.kind, entry.about, word, size)
        console = Console()
        console.print(table)
        _say(console, f"Kept in {self.data_home}.")
        _say(console, "From its public home: laconic data get NAME. From a folder: laconic data import NAME DIR")


@dataclass(frozen=True, kw_only=True)
class Get:
    """Fetch a data set from its public home, check it, and keep it; a download that was cut goes on."""

    name: Positional[Annotated[str, arg(metavar="NAME")]]
    """The set: see laconic data list."""
    data_home: Path = field(default_factory=default_home)
    """Where data is kept. Default: $LACONIC_DATA, else $XDG_DATA_HOME/laconic, else ~/.local/share/laconic."""
    unchecked: bool = False
    """Take it even if it is not the set as it is known; about.json says so."""
    json: bool = False
    """Print what was got as JSON."""

    def __post_init__(self) -> None:
        entry_of(self.name)

    def run(self) -> None:
        """Fetch, and print what there is."""
        entry = entry_of(self.name)
        if entry.embedded:
            if self.json:
                print_json(_listed(entry, self.data_home))
            else:
                _say(Console(), f"{entry.name} is built in: nothing to fetch. {entry.about}")
            return
        with _bars() as bars:
            line = Line(progress=bars.fetched)
            about = get(self.name, self.data_home, unchecked=self.unchecked, line=line, tell=bars.reading)
        _report(about, self.data_home, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Import:
    """Read a data set from a folder that has a copy, in any of the usual forms, check it, and keep it."""

    name: Positional[Annotated[str, arg(metavar="NAME")]]
    """The set: see laconic data list."""
    folder: Positional[Annotated[Path, arg(metavar="DIR")]]
    """The folder with its files, or the one above; plain, compressed, or in a tar archive."""
    data_home: Path = field(default_factory=default_home)
    """Where data is kept. Default: $LACONIC_DATA, else $XDG_DATA_HOME/laconic, else ~/.local/share/laconic."""
    unchecked: bool = False
    """Take it even if it is not the set as it is known; about.json says so."""
    json: bool = False
    """Print what was imported as JSON."""

    def __post_init__(self) -> None:
        entry_of(self.name)

    def run(self) -> None:
        """Import, and print what there is."""
        with _bars() as bars:
            about = import_set(self.name, self.folder, self.data_home, unchecked=self.unchecked, tell=bars.reading)
        _report(about, self.data_home, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Data:
    """List the public data sets, fetch them with checksums, or import copies from a folder."""

    action: (
        Annotated[List, subcommand("list")]
        | Annotated[Get, subcommand("get")]
        | Annotated[Import, subcommand("import")]
    )

    def run(self) -> None:
        """Do what was asked for."""
        self.action.run()


@dataclass(frozen=True, kw_only=True)
class _Bars:
    """Who shows how far a download is, and what is being read."""

    fetched: Callable[[str, int, int | None], None]
    reading: Callable[[str], None]


@contextmanager
def _bars() -> Iterator[_Bars]:
    """Show progress beside the output, on the error stream."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, Any] = {}

        def fetched(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total, amount="")
            amount = f"{done / 1e6:,.1f}" + ("" if total is None else f" of {total / 1e6:,.1f}") + " MB"
            progress.update(tasks[name], completed=done, total=total, amount=amount)

        yield _Bars(fetched=fetched, reading=lambda place: _reading(progress, tasks, place))


def _reading(progress: Progress, tasks: dict[str, Any], place: str) -> None:
    if "reading" not in tasks:
        tasks["reading"] = progress.add_task("", total=None, amount="")
    progress.update(tasks["reading"], description=f"reading {Path(place).name}")


def _listed(entry: Entry, home: Path) -> dict[str, Any]:
    there = is_there(entry.name, home)
    return {
        "name": entry.name,
        "kind": entry.kind,
        "about": entry.about,
        "parts": {part: known.count for part, known in entry.parts.items()},
        "built_in": entry.embedded,
        "there": there or entry.embedded,
        "bytes": size_of(entry.name, home) if there else 0,
        "urls": [file.url for file in entry.files],
        "terms": entry.terms,
        "citation": entry.citation,
    }


def _report(about: About, home: Path, *, as_json: bool) -> None:
    entry = entry_of(about.name)
    if as_json:
        print_json(asdict(about) | {"home": str(home), "terms": entry.terms, "citation": entry.citation})
        return
    console = Console()
    _say(console, f"{about.name} is in {home / about.name}")
    for part, found in about.parts.items():
        _say(console, f"  {part}: {found.count:,} {UNITS[about.kind]} ({_CHECKED[about.checked[part]]})")
    for note in about.notes:
        _say(console, f"  Note: {note}.")
    _say(console, f"Terms: {entry.terms}")
    _say(console, f"Cite: {entry.citation}")


def _say(console: Console, text: str) -> None:
    """Print a line as it is: paths may have brackets in them, and are not cut."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)

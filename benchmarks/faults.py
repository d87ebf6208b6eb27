"""The fault lab: hundreds of trainings, to each of which something else happens, drawn by its seed.

    python benchmarks/faults.py                                  # all of it, and benchmarks/results/faults.json
    python benchmarks/faults.py --only kill --scenarios 20       # some of one kind
    python benchmarks/faults.py --only kill --first-seed 17 --scenarios 1   # one of them again

fault_kinds.py says what is done, and what must come of it. Disks, hosts and their cables are real ones, for which
root is needed; without, those kinds are left out, and it says so. Nothing is timed but what must end in time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import fault_files
import fault_kinds as kinds
import fault_quorum
import fault_torchrun
import tyro
from fault_bench import Bench, FaultError, Scenario
from fault_ranks import get_ready
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from laconic.lab.folder import write_json
from laconic.lab.machine import machine
from laconic.lab.network.hosts import Hosts, missing, shaped_hosts

Kind = Callable[[Scenario], str]
# Of each kind: what is done, and how many of 600 scenarios are of it.
KINDS: dict[str, tuple[Kind, int]] = {
    "kill": (kinds.kill, 150),
    "kill at any time": (kinds.kill_at_any_time, 50),
    "other worlds": (kinds.other_worlds, 90),
    "full disk": (fault_files.full_disk, 40),
    "damaged checkpoint": (fault_files.damaged_checkpoint, 60),
    "damaged on the way": (kinds.damaged_on_the_way, 80),
    "storm": (kinds.storm, 50),
    "pause": (kinds.pause, 24),
    "cut": (kinds.cut, 24),
    "clocks apart": (kinds.clocks_apart, 16),
    "quorum": (fault_quorum.lost_and_come, 12),
    "torchrun": (fault_torchrun.killed_under_torchrun, 4),
}
OF = sum(number for _, number in KINDS.values())
NEEDS_ROOT, NEEDS_HOSTS = ("full disk", "cut"), ("cut",)
GOOD = ("same bits", "restarted", "refused", "went on")
_HOSTS = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Let something happen to many trainings, and see what comes of it."""

    scenarios: int = OF
    """How many, of all kinds together, or of those that are named."""
    only: tuple[str, ...] = ()
    """Kinds to try; by default all."""
    jobs: int = 2
    """Scenarios at a time."""
    first_seed: int = 0
    """The first scenario of each kind has this seed, the next one the next."""
    out: Path | None = Path("benchmarks/results/faults.json")
    """Where every scenario is written down; kinds that are named are not."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scenario: what was done, and how it ended; ``error_seconds`` from the fault to the end of all ranks."""

    kind: str
    seed: int
    method: str
    what: str
    ended: str
    seconds: float
    error_seconds: float | None = None
    in_the_band: float | None = None
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether it ended well."""
        return self.ended in GOOD


def main() -> None:
    """Make the scenarios, print the tally, and end with 1 if one did not end well."""
    options = tyro.cli(Options, description=__doc__)
    unknown = sorted(set(options.only) - KINDS.keys())
    if unknown:
        raise SystemExit(f"faults: no kind {unknown[0]!r}. There are: {', '.join(KINDS)}.")
    console, wanted = Console(stderr=True), dict.fromkeys(options.only or KINDS)
    about = machine("python benchmarks/faults.py", asdict(options))
    lacking = missing() if os.name == "posix" else "hosts need Linux"
    for kind in [kind for kind in wanted if kind in NEEDS_ROOT] if lacking else ():
        console.print(f"left out: {kind}, for {lacking}.")
        del wanted[kind]
    plan = [(kind, options.first_seed + n) for kind, many in _dealt(options.scenarios, wanted) for n in range(many)]
    get_ready()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="laconic-faults-") as scratch, _hosts(wanted) as hosts:
        rows = list(_made(plan, Bench(Path(scratch), hosts), options.jobs, console))
    _print(rows, time.monotonic() - began)
    if options.out is not None and not options.only:
        about["seconds"] = round(time.monotonic() - began, 1)
        write_json(options.out, about | {"tally": _tally(rows), "scenarios": [asdict(row) for row in rows]})
    sys.exit(0 if all(row.good for row in rows) else 1)


def _dealt(scenarios: int, wanted: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield how many of the scenarios each kind has, in proportion; those that are left go to the first kinds."""
    weights = {kind: KINDS[kind][1] for kind in wanted}
    many = {kind: scenarios * weight // sum(weights.values()) for kind, weight in weights.items()}
    left = scenarios - sum(many.values())
    for place, kind in enumerate(sorted(weights, key=lambda kind: many[kind] > 0)):
        many[kind] += place < left
    yield from many.items()


@contextmanager
def _hosts(wanted: dict[str, None]) -> Iterator[Hosts | None]:
    if not any(kind in NEEDS_HOSTS for kind in wanted):
        yield None
        return
    with shaped_hosts(_HOSTS) as hosts:
        yield hosts


def _made(plan: list[tuple[str, int]], bench: Bench, jobs: int, console: Console) -> Iterator[Row]:
    progress = Progress(console=console, disable=not console.is_terminal)
    with progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("scenarios", total=len(plan))
        for row in pool.map(lambda each: _one(*each, bench), plan):
            progress.update(task, description=row.kind)
            if not row.good:
                console.print(f"{row.kind} {row.seed}, {row.method}: {row.what}: {row.detail}", markup=False)
            progress.advance(task)
            yield row


def _one(kind: str, seed: int, bench: Bench) -> Row:
    """Make one scenario, and write down how it ended."""
    began, story, detail = time.monotonic(), Scenario(bench, f"{kind} {seed}"), ""
    try:
        ended = KINDS[kind][0](story)
    except FaultError as error:
        ended, detail = str(error).split(":")[0], str(error)
    finally:
        shutil.rmtree(story.folder, ignore_errors=True)
    return Row(
        kind=kind, seed=seed, method=story.word, what=story.what, ended=ended, detail=detail,
        seconds=round(time.monotonic() - began, 2),
        error_seconds=_rounded(story.error_seconds), in_the_band=_rounded(story.in_the_band),
    )  # fmt: skip


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)


def _tally(rows: list[Row]) -> dict[str, dict[str, int]]:
    return {
        kind: dict(Counter(row.ended for row in rows if row.kind == kind))
        for kind in dict.fromkeys(row.kind for row in rows)
    }


def _print(rows: list[Row], seconds: float) -> None:
    tally, ends = _tally(rows), [*GOOD, *sorted({row.ended for row in rows if not row.good})]
    table = Table("kind", *ends, "all", "slowest error")
    for kind, counted in tally.items():
        waits = [row.error_seconds for row in rows if row.kind == kind and row.error_seconds is not None]
        slowest = f"{max(waits):.1f} s" if waits else ""
        table.add_row(kind, *(str(counted.get(end, "")) for end in ends), str(sum(counted.values())), slowest)
    total = Counter(row.ended for row in rows)
    table.add_row("all", *(str(total.get(end, "")) for end in ends), str(len(rows)), "")
    console = Console(highlight=False)
    console.print(table)
    bad = sum(not row.good for row in rows)
    console.print(f"{len(rows)} scenarios in {seconds:.0f} s; {bad or 'none'} did not end well.")


if __name__ == "__main__":
    main()

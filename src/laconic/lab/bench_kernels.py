"""``laconic bench kernels``: what each kernel takes, beside the time that moving its bytes takes at least."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.kernels import Inflow, Places, reference
from laconic.lab.layouts import lstm, resnet50
from laconic.lab.machine import check_device, extra_bytes, introduce, kilobytes, machine, save
from laconic.lab.timing import host_seconds, timed
from laconic.segments import Segments

Work = Callable[[], Tensor | None]
CHUNK = 4096
RIVALS = {"eager": "eager\ntwin", "topk": "abs()\n.topk()", "dgc": "DGC\nsample", "chunked": "chunked\ntop-k"}
# Whole vectors that an op must read or write.
PASSES = {"accumulate_": 3, "accumulate_ with momentum": 5, "take_above_": 1, "take_top_": 2, "store_": 3}
PASSES["pipeline"] = PASSES["accumulate_"] + PASSES["take_above_"]
# Vectors in memory at the worst moment: five that are kept, and what top-k makes of one on CPU.
HELD = 12
BY = {
    "cpu": "growth of VmHWM in a call, the heap trimmed before",
    "cuda": "growth of torch.cuda.max_memory_allocated",
}
NOTE = """over floor: times what copies in between need for the same bytes. The columns behind it
say how many times longer another way takes. pipeline: accumulate_ and take_above_. On a GPU
the times are the GPU's; host: until the call comes back, while the GPU works."""


@dataclass(frozen=True, kw_only=True)
class BenchKernels:
    """Time the kernels, their plain-torch twins and three other ways to select, against the speed of a copy."""

    device: str = "cpu"
    """Where to run: cpu or cuda."""
    threads: int = 2
    """Threads on CPU."""
    sizes: tuple[int, ...] = (1_000_000, 25_000_000, 250_000_000)
    """Entries of the vectors that are one segment each."""
    density: float = 0.001
    """Share of the entries to select, in (0, 1]."""
    repeats: int = 7
    """Timed calls, of which the median counts; at most three of what takes over a second."""
    layouts: bool = True
    """Also time the layouts of ResNet-50 and of a large LSTM language model."""
    json: Path | None = None
    """Where to write every number; rewritten after each layout."""

    def __post_init__(self) -> None:
        check_device(self.device)
        check_whole("threads", self.threads, 1, "It counts threads.")
        check_whole("repeats", self.repeats, 1, "It counts timed calls.")
        for size in self.sizes:
            check_whole("sizes", size, 1, "Each counts entries: --sizes 1000000 25000000.")
        check_share("density", self.density, "For 0.1% write --density 0.001.")

    def run(self) -> None:
        """Measure, print a table a layout, and write the file."""
        torch.set_num_threads(self.threads)
        console, about = Console(), machine("laconic bench kernels", asdict(self))
        began = time.perf_counter()
        kernels.warm(self.device, torch.float32, [torch.float32])
        warm = time.perf_counter() - began
        about |= {"gpu": torch.cuda.get_device_name() if self.device == "cuda" else None}
        about |= {"kernels": kernels.in_use(self.device), "warm_seconds": warm, "layouts": []}
        introduce(console, about, f"compiled or found on disk in {warm:.1f} s; {self.threads} threads")
        cases = {f"{size:,} entries": [size] for size in self.sizes}
        cases |= {"ResNet-50": resnet50(), "LSTM 2 x 1500": lstm()} if self.layouts else {}
        for name, sizes in cases.items():
            done = self._layout(name, Segments.of([str(i) for i in range(len(sizes))], sizes), console)
            about["layouts"].append(done)
            console.print(f"{name}: skipped, {done['skipped']}" if "skipped" in done else _table(done))
            save(self.json, about)
        console.print(" ".join(NOTE.split()), highlight=False)

    def _layout(self, name: str, segments: Segments, console: Console) -> dict[str, Any]:
        about = {"name": name, "segments": len(segments), "entries": segments.numel}
        needs, free = HELD * 4 * segments.numel, _free(self.device)
        if free is not None and needs > free:
            return about | {"skipped": f"it needs {needs / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free"}
        cuda = self.device == "cuda"
        with console.status(f"{name}: making vectors") as status:
            case = Case(segments, self.device, self.density)

            def seconds(what: str, work: Work) -> list[float]:
                status.update(f"{name}: {what}")
                return timed(work, before=case.restore, repeats=self.repeats, cuda=cuda)

            def copies() -> list[float]:
                return seconds("copy", lambda: case.x.copy_(case.owed))

            ways = {"laconic": case.ops(kernels), "eager": case.ops(reference)}
            ways |= {"topk": case.rival(top), "dgc": case.rival(sampled), "chunked": case.rival(chunked)}
            rows = []
            for op in ways["laconic"]:
                works = {way: ops[op] for way, ops in ways.items() if op in ops}
                # Memory is faster in one second than in the next: copies are timed all along.
                before = copies()
                every = {"laconic": seconds(f"{op}, laconic", works["laconic"])}
                around = [*before, *copies()]
                every |= {way: seconds(f"{op}, {way}", work) for way, work in works.items() if way != "laconic"}
                middle = {way: median(values) for way, values in every.items()}
                moved = case.bytes_of(op)
                row = {"op": op, "bytes": moved, "seconds": middle, "every": every, "copies": around}
                row["times_faster"] = {w: middle[w] / middle["laconic"] for w in middle if w != "laconic"}
                row["selected"] = {way: case.selected(work) for way, work in works.items()}
                if cuda:
                    host = host_seconds(works["laconic"], before=case.restore, repeats=self.repeats)
                    row |= {"launches": _launches(works["laconic"], case), "host_seconds": median(host)}
                rows.append(row)
            extra = {way: case.extra_bytes(ways[way]["pipeline"]) for way in ("laconic", "eager")}
        about |= {"ops": rows, "extra_bytes": extra, "copy_bytes_per_second": add_floors(rows, case.x.nbytes)}
        return about | {"extra_bytes_by": BY[self.device]}


def add_floors(rows: list[dict[str, Any]], vector: int) -> float:
    """Add to each row what its bytes take at the speed of the copies, the median of all; return that speed."""
    copies: list[float] = [seconds for row in rows for seconds in row["copies"]]
    rate = 2 * vector / median(copies)
    for row in rows:
        row["floor_seconds"] = row["bytes"] / rate
        row["over_floor"] = row["seconds"]["laconic"] / row["floor_seconds"]
    return rate


class Case:
    """The vectors of one layout, and what is done with them."""

    def __init__(self, segments: Segments, device: str, density: float) -> None:
        self.segments, self.density = segments, density
        torch.manual_seed(0)
        self.fresh, self.owed, self.velocity = (torch.randn(segments.numel, device=device) for _ in range(3))
        self.x, self.proposed = torch.empty_like(self.fresh), torch.empty_like(self.fresh)
        edge = -torch.special.ndtri(torch.tensor(density / 2, dtype=torch.float64)).item()
        self.thresholds = torch.full((len(segments),), edge, device=device)
        self.rooms = [min(s.size, math.ceil(1.1 * density * s.size)) for s in segments]
        self.counts = [max(1, round(density * s.size)) for s in segments]
        self.payloads: tuple[list[Tensor], list[Tensor]] = ([], [])
        for vector in (self.fresh, self.owed):
            taken = kernels.take_top_(self.x.copy_(vector), segments, self.counts)
            self.payloads[0].append(taken.positions.to(torch.int32))
            self.payloads[1].append(taken.values)

    def restore(self) -> None:
        """Make x what it was, a fresh gradient, and wait until it is."""
        self.x.copy_(self.fresh)
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def selected(self, work: Work) -> int | None:
        """Count the entries that a call takes."""
        self.restore()
        values = work()
        return None if values is None else int(torch.count_nonzero(values))

    def extra_bytes(self, work: Work) -> int | None:
        """Return what a call takes at its peak; it has run before, so that nothing is made for the first time."""
        self.selected(work)
        self.restore()
        return extra_bytes(work, cuda=self.x.is_cuda)

    def bytes_of(self, op: str) -> int:
        """Count the bytes that an op must read and write; of a payload's entry the place it is added to as well."""
        payload = sum(at.nbytes + 3 * value.nbytes for at, value in zip(*self.payloads, strict=True))
        return PASSES[op] * self.x.nbytes if op in PASSES else payload

    def ops(self, twin: ModuleType) -> dict[str, Work]:
        """Return the ops by one of the twins. Those that select return the values they took."""
        x, segments = self.x, self.segments
        places = Places(grad=segments, x=segments, home=segments)
        plain = Inflow.plain(len(segments), like=x)
        moving = replace(plain, momentum=plain.gain * 0.9)
        # The pipeline selects from the sum of two standard normal vectors.
        wider = self.thresholds * math.sqrt(2)

        def accumulate() -> None:
            twin.accumulate_(x, x, plain, places, owed=self.owed)

        def momentum() -> None:
            twin.accumulate_(x, x, moving, places, owed=self.owed, velocity=self.velocity, proposed=self.proposed)

        def pipeline() -> Any:
            done = twin.accumulate_(x, x, plain, places, owed=self.owed)
            return twin.take_above_(x, segments, wider, self.rooms, largest=done.largest).values

        return {
            "accumulate_": accumulate,
            "accumulate_ with momentum": momentum,
            "take_above_": lambda: twin.take_above_(x, segments, self.thresholds, self.rooms).values,
            "take_top_": lambda: twin.take_top_(x, segments, self.counts).values,
            "store_": lambda: twin.store_(x, self.proposed, places),
            "add_payloads_": lambda: twin.add_payloads_(x, *self.payloads, scale=0.5),
            "pipeline": pipeline,
        }

    def rival(self, way: Callable[[Tensor, float], Tensor]) -> dict[str, Work]:
        """Return another way to select, layer by layer, and the same after adding what is owed."""

        def select(x: Tensor) -> Tensor:
            return torch.cat([way(view, self.density) for view in self.segments.views(x)])

        alone = partial(select, self.x)
        return {"take_above_": alone, "take_top_": alone, "pipeline": lambda: select(self.x + self.owed)}


def top(x: Tensor, density: float) -> Tensor:
    """Take the largest magnitudes as plain torch does it."""
    return _out(x, x.abs().topk(max(1, round(density * x.numel())), sorted=False).indices)


def sampled(x: Tensor, density: float) -> Tensor:
    """Take what reaches a threshold that the largest of a sample give, 1% of the entries (Lin et al. 2018)."""
    # As in the authors' code a sample is never so small that less than two of it are to be sent.
    count = max(math.ceil(0.01 * x.numel()), math.ceil(2 / density))
    some = x if count >= x.numel() else x[torch.randint(x.numel(), (count,), device=x.device)]
    threshold = some.abs().topk(max(1, round(density * some.numel())), sorted=False).values.min()
    return _out(x, (x.abs() >= threshold).nonzero().flatten())


def chunked(x: Tensor, density: float) -> Tensor:
    """Take the largest magnitudes of each 4096 entries, and of those left over."""
    whole = x.numel() // CHUNK * CHUNK
    rows = x[:whole].view(-1, CHUNK)
    at = rows.abs().topk(max(1, round(density * CHUNK)), dim=1, sorted=False).indices
    values = rows.gather(1, at).flatten()
    rows.scatter_(1, at, 0)
    return values if whole == x.numel() else torch.cat([values, top(x[whole:], density)])


def _out(x: Tensor, at: Tensor) -> Tensor:
    values = x[at]
    x.index_fill_(0, at, 0)
    return values


def _launches(work: Work, case: Case) -> int:
    case.restore()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() or [] if event.device_type.name == "CUDA"]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


def _free(device: str) -> int | None:
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    return 1024 * (kilobytes("/proc/meminfo", "MemAvailable") or 0) or None


def _table(done: dict[str, Any]) -> Table:
    many = f", {done['segments']} segments, {done['entries']:,} entries" if done["segments"] > 1 else ""
    title = f"{done['name']}{many}; a copy moves {done['copy_bytes_per_second'] / 1e9:.1f} GB/s"
    out = Table(title=title, box=box.SIMPLE, padding=0)
    out.add_column("op")
    on_cuda = ["laun-\nches", "host\nms"] if "launches" in done["ops"][0] else []
    for heading in ("ms", *on_cuda, "MB\nmoved", "over\nfloor", *RIVALS.values()):
        out.add_column(heading, justify="right")
    for row in done["ops"]:
        numbers = (1e3 * row["seconds"]["laconic"], row["bytes"] / 1e6, row["over_floor"])
        cells = [f"{number:,.3f}" if number < 10 else f"{number:,.1f}" for number in numbers]
        if on_cuda:
            cells[1:1] = [str(row["launches"]), f"{1e3 * row['host_seconds']:.3f}"]
        ratios = [row["times_faster"].get(way) for way in RIVALS]
        out.add_row(
            row["op"].replace(" with", "\nwith"), *cells, *("-" if r is None else f"{r:.1f}x" for r in ratios)
        )
    return out

"""What ranks do for the benchmark of steps: visit every competitor in turn, round by round, and time its steps."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.lab.models.perceptron import perceptron
from laconic.lab.network.meeting import Meeting
from laconic.lab.network.plain_transfer import plain_transfer
from laconic.lab.network.rank import own_folder, rejoin, say
from laconic.lab.peers import Ours, Peer, Prepared, peer_of

AGAIN = " again"
# What is on its way is acknowledged within this time: Linux delays acknowledgements by up to 0.2 s.
_SETTLE_SECONDS = 0.25
# However slow they are. Two steps before the timed ones: DDP deals its buckets out anew after the first.
_LEAST_TIMED, _LEAST_WARMUP = 2, 2
_GROWN = ("wire_bytes", "link_bytes", "select_seconds", "wait_seconds", "skipped_steps", "collectives")


@dataclass(frozen=True, kw_only=True)
class Course:
    """What every competitor is timed at, and for how long: a pickle that ranks are started with."""

    competitors: dict[str, Peer | str]
    """Peers by the name of their row; a word where the rank itself must look for it."""
    layers: int
    width: int
    batch: int
    warmup: int
    steps: int
    rounds: int
    seconds: float
    """A visit takes no further step after so many seconds of timed ones."""
    patience_seconds: float
    """The longest that a rank waits for another."""
    megabits: float | None
    interface: str | None
    """Whose bytes are counted; None: there is none of this rank's own."""

    def peer(self, name: str) -> Peer:
        """Return the competitor of a row."""
        found = self.competitors[name.removesuffix(AGAIN)]
        return peer_of(found) if isinstance(found, str) else found


@dataclass(kw_only=True)
class Visits:
    """What a rank saw of one competitor: seconds a step (means over a period), and what grew by a step."""

    name: str
    setting: str | None = None
    seconds: list[float] = field(default_factory=list)
    interface_bytes: list[float] = field(default_factory=list)
    grown: list[dict[str, float]] = field(default_factory=list)
    failed: str | None = None


def visit_all(course: Course) -> dict[str, Any]:
    """Time every competitor in turn, the first again in the end. Runs on every rank."""
    transfer = plain_transfer(course.megabits)
    first, names = next(iter(course.competitors)), list(course.competitors)
    seen = {name: Visits(name=name) for name in (*names, first + AGAIN)}
    plan = [name for _ in range(course.rounds) for name in names] + [first + AGAIN]
    for number, name in enumerate(plan):
        if dist.get_rank() == 0:
            say(f"{number} {len(plan)} {name}")
        if seen[name].failed is None:
            seen[name].failed = _visit(seen[name], course, number)
    return {"transfer": None if transfer is None else asdict(transfer), "visits": list(seen.values())}


def _visit(seen: Visits, course: Course, number: int) -> str | None:
    """Visit a competitor; return what went wrong, on every rank the same."""
    # A group of its own: one that a competitor broke, or left a message in, is no one else's.
    rejoin(f"visit-{number}", course.patience_seconds)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    meeting = Meeting(own_folder() / f"meeting-{number}", rank, ranks, seconds=course.patience_seconds)
    said: str | None = None
    try:
        _time(seen, course, meeting)
    except Exception as error:
        # The time is the machine's: the first to fail knows why, those that it left alone do not.
        said = f"{time.monotonic_ns():020d} {type(error).__name__}: {error}"
        meeting.leave()
    # Models and hooks hold each other, and the group: ranks that wait for one that failed notice when it is gone.
    gc.collect()
    rejoin(f"after-{number}", 3 * course.patience_seconds + 60)
    heard: list[str | None] = [None] * ranks
    dist.all_gather_object(heard, said)
    words = sorted(text for text in heard if text is not None)
    return words[0].split(" ", 1)[1] if words else None


def _time(seen: Visits, course: Course, meeting: Meeting) -> None:
    """Time one competitor from the first weights on: a model, an optimizer and a link of its own."""
    torch.manual_seed(0)
    module = perceptron(course.layers, course.width)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(course.batch, course.width)
    peer = course.peer(seen.name)
    seen.setting = repr(peer.method) if isinstance(peer, Ours) else None
    prepared = peer.prepare(module, torch.optim.SGD(module.parameters(), lr=0.01))
    try:
        _periods(prepared, x, peer.period, meeting, course.seconds, warmup_periods(course.warmup, peer.period))
        before, sent = _counted(prepared), _sent_bytes(course.interface, meeting)
        most = max(_LEAST_TIMED, -(-course.steps // peer.period))
        times = _periods(prepared, x, peer.period, meeting, course.seconds, range(_LEAST_TIMED, most + 1))
        after, steps = _counted(prepared), len(times) * peer.period
        sent_after = _sent_bytes(course.interface, meeting)
        seen.seconds += times
        if sent is not None and sent_after is not None:
            seen.interface_bytes.append((sent_after - sent) / steps)
        if after:
            seen.grown.append({key: (after[key] - before[key]) / steps for key in after})
    finally:
        prepared.close()


def warmup_periods(steps: int, period: int) -> range:
    """Return the fewest and the most periods before the timed ones; two steps at least, however few are wanted.

    >>> warmup_periods(5, 1), warmup_periods(0, 1), warmup_periods(5, 4)
    (range(2, 6), range(2, 3), range(1, 3))
    """
    least, most = (-(-count // period) for count in (_LEAST_WARMUP, steps))
    return range(least, max(least, most) + 1)


def _periods(
    prepared: Prepared, x: Tensor, period: int, meeting: Meeting, seconds: float, numbers: range
) -> list[float]:
    """Take periods until the seconds are over, within the numbers of them allowed; return each one's mean step.

    Ranks begin a period together: what one lags behind is not another's step.
    """
    spent, times = 0.0, list[float]()
    while len(times) < numbers[-1]:
        # All ranks take as many: they agree on the longest that one of them has spent.
        longest = max(meeting.meet(spent))
        if len(times) >= numbers[0] and longest > seconds:
            break
        began = time.perf_counter()
        for _ in range(period):
            prepared.optimizer.zero_grad()
            prepared.model(x).square().mean().backward()
            prepared.optimizer.step()
        took = time.perf_counter() - began
        spent += took
        times.append(took / period)
    return times


def _counted(prepared: Prepared) -> dict[str, float]:
    link = prepared.link
    if link is None:
        return {}
    stats = link.stats
    blocked = {"blocked_seconds": link.transport.blocked_seconds}
    return {name: float(getattr(stats, name)) for name in _GROWN} | blocked


def _sent_bytes(interface: str | None, meeting: Meeting) -> int | None:
    """Return what this rank's interface has sent so far, once nothing is on its way any more."""
    meeting.meet()
    if interface is None:
        return None
    time.sleep(_SETTLE_SECONDS)
    sent = int((Path("/sys/class/net") / interface / "statistics" / "tx_bytes").read_text())
    meeting.meet()
    return sent

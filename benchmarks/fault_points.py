"""Where faults strike inside a rank: traps that are laid before a run, and go off once, at a point of a step.

Points are places of the training loop, of the exchange, and of a checkpoint that is written; a fault that ends or
stops the process does so there, with everything else left as it is at that moment.
"""

from __future__ import annotations

import io
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from laconic.collectives import Request
from laconic.lab import checkpoint, folder
from laconic.lab.folder import RunFolder
from laconic.lab.loop import Loop
from laconic.transports import ProcessGroupTransport

What = Literal["kill", "pause", "mark", "poison", "send", "hear", "clock"]
# What is done from outside, at a mark, is done within this time.
MARK_SECONDS = 0.4
# In a step, in an exchange, between steps.
STEP_POINTS = ("batch", "backward", "exchange", "sent", "drain", "talk", "evaluation")
# In a checkpoint; the last two are on the first rank alone.
SAVE_POINTS = ("saving", "half a file", "digest", "written", "sealing", "pruning")
FIRST_RANK_POINTS = ("sealing", "pruning")
POISONS = ("nan", "inf", "-inf", "one nan", "one inf")
DAMAGES = ("one bit", "one byte", "some bytes", "all bytes", "zeros", "moved")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault on one rank, at a step or as soon as there is occasion after it; step 0 is before the first one.

    ``detail`` says more of it, and ``seed`` draws the rest.
    """

    what: What
    rank: int
    step: int
    point: str = "batch"
    detail: str = ""
    seed: int = 0


def lay(fault: Fault, struck: Path) -> None:
    """Lay the trap of a fault in this process; once it goes off ``struck`` is there."""
    trap = _Trap(fault, struck)
    strikes: dict[str, Callable[[_Trap], None]] = {
        "poison": _lay_poison, "send": _lay_send, "hear": _lay_hear, "clock": _lay_clock,
    }  # fmt: skip
    strikes.get(fault.what, _lay_points)(trap)
    # Last, and so first in each step: traps are to know which one it is.
    _watch_steps(trap)


class _Trap:
    """Knows the step, and goes off once."""

    def __init__(self, fault: Fault, struck: Path) -> None:
        self.fault, self.step, self.chance = fault, 0, random.Random(fault.seed)
        self._struck, self._gone_off = struck, False

    def ready(self) -> bool:
        return not self._gone_off and self.step >= self.fault.step

    def goes_off(self) -> None:
        self._gone_off = True
        self._struck.touch()

    def at(self, point: str) -> None:
        """End or stop this process, if this is the point."""
        if point == self.fault.point and self.ready():
            self.goes_off()
            if self.fault.what == "mark":
                time.sleep(MARK_SECONDS)
            else:
                os.kill(os.getpid(), signal.SIGKILL if self.fault.what == "kill" else signal.SIGSTOP)


def _around(owner: Any, name: str, before: Callable[..., None], after: Callable[[], None] = lambda: None) -> None:
    """Have something done before and after a function is called; ``before`` sees its arguments."""
    call = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args)
        value = call(*args, **kwargs)
        after()
        return value

    setattr(owner, name, wrapped)


def _watch_steps(trap: _Trap) -> None:
    def begin(loop: Loop, *_: Any) -> None:
        trap.step = loop.step + 1

    _around(Loop, "_train_step", begin)


def _lay_points(trap: _Trap) -> None:
    def before_step(loop: Loop, *_: Any) -> None:
        trap.at("batch")
        if trap.fault.point == "backward" and trap.ready():
            parameter = trap.chance.choice(list(loop.work.model.parameters()))
            parameter.register_hook(lambda _: trap.at("backward"))

    _around(Loop, "_train_step", before_step)
    _around(Loop, "_evaluate", lambda *_: trap.at("evaluation"))
    _around(Loop, "_agree_to_stop", lambda *_: trap.at("talk"))
    _around(ProcessGroupTransport, "start", lambda *_: trap.at("exchange"), lambda: trap.at("sent"))
    _around(ProcessGroupTransport, "drain", lambda *_: trap.at("drain"))
    _around(RunFolder, "save_rank", lambda *_: trap.at("saving"), lambda: trap.at("written"))
    _around(RunFolder, "seal", lambda *_: trap.at("sealing"))
    _around(folder.shutil, "rmtree", lambda *_: trap.at("pruning"))
    _around(folder, "_digest", lambda *_: trap.at("digest"))
    torch.save = _half_saved(trap, torch.save)


def _half_saved(trap: _Trap, save: Callable[..., None]) -> Callable[..., None]:
    """Write a random share of a file's bytes before the fault strikes."""

    def saved(state: Any, file: Any) -> None:
        if trap.fault.point != "half a file" or not trap.ready():
            save(state, file)
            return
        whole = io.BytesIO()
        save(state, whole)
        half = trap.chance.randrange(whole.tell())
        file.write(whole.getvalue()[:half])
        file.flush()
        trap.at("half a file")
        file.write(whole.getvalue()[half:])

    return saved


def _lay_poison(trap: _Trap) -> None:
    """Spoil the gradient of a step: the whole of it, or one entry."""
    kind = trap.fault.detail
    number = float(kind.removeprefix("one "))

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        bad = gradient.clone()
        if kind.startswith("one "):
            bad.view(-1)[trap.chance.randrange(bad.numel())] = number
            return bad
        return bad.fill_(number)

    def before_step(loop: Loop, *_: Any) -> None:
        if trap.ready():
            trap.goes_off()
            parameter = trap.chance.choice(list(loop.work.model.parameters()))
            handle = parameter.register_hook(lambda gradient: (handle.remove(), spoiled(gradient))[1])

    _around(Loop, "_train_step", before_step)


def damage_(raw: torch.Tensor, how: str, chance: random.Random) -> None:
    """Change bytes, at least one of them."""
    size = raw.numel()
    before = raw.clone()
    while torch.equal(raw, before):
        if how in ("one bit", "one byte"):
            change = 1 << chance.randrange(8) if how == "one bit" else chance.randrange(1, 256)
            raw[chance.randrange(size)] ^= change
        elif how == "moved":
            raw.copy_(before.roll(chance.randrange(1, max(2, size))))
            how = "one byte"
        elif how == "zeros":
            begin = chance.randrange(size)
            raw[begin : begin + chance.randrange(1, 65)] = 0
            how = "one byte"
        else:
            many = size if how == "all bytes" else min(size, chance.randrange(2, 33))
            for place in chance.sample(range(size), many):
                raw[place] = chance.randrange(256)


def _lay_send(trap: _Trap) -> None:
    """Damage what this rank sends in one exchange, for all who hear it."""
    issue = ProcessGroupTransport._issue

    def damaged(self: ProcessGroupTransport, running: Any, request: Request) -> None:
        if trap.ready() and request.send.numel() and request.send.dtype is torch.uint8:
            trap.goes_off()
            damage_(request.send, trap.fault.detail, trap.chance)
        issue(self, running, request)

    ProcessGroupTransport._issue = damaged  # type: ignore[method-assign]


def _lay_hear(trap: _Trap) -> None:
    """Damage what this rank hears of one exchange; the others hear it as it was sent."""
    advance = ProcessGroupTransport._advance

    def damaged(self: ProcessGroupTransport, running: Any, reply: torch.Tensor | None) -> None:
        if reply is not None and trap.ready() and reply.numel() and self.world_size > 1:
            trap.goes_off()
            reply = reply.contiguous().clone()
            damage_(reply.view(-1).view(torch.uint8), trap.fault.detail, trap.chance)
        advance(self, running, reply)

    ProcessGroupTransport._advance = damaged  # type: ignore[method-assign]


def _lay_clock(trap: _Trap) -> None:
    """Have Python's clocks here go wrong: hours or days away, faster or slower, and leaping in some step."""
    chance = trap.chance
    rate, away, leap = chance.choice([0.5, 0.9, 1.1, 2.0]), chance.uniform(-3e5, 3e5), chance.uniform(0, 5e4)
    jumped = [0.0]

    def before_step(*_: Any) -> None:
        if trap.ready():
            trap.goes_off()
            jumped[0] = leap

    _around(Loop, "_train_step", before_step)
    for name in ("time", "perf_counter", "monotonic"):
        clock, begin = getattr(time, name), getattr(time, name)()
        # Nothing but the clock of the calendar may go backwards.
        offset = away if name == "time" else abs(away)
        setattr(
            time,
            name,
            lambda clock=clock, begin=begin, offset=offset: begin + offset + rate * (clock() - begin) + jumped[0],
        )


def note_owed(place: Path) -> None:
    """Have what this rank owes written down right after it has gone on from a checkpoint."""
    go_on = checkpoint.go_on

    def noted(loop: Loop, step: int) -> None:
        go_on(loop, step)
        torch.save(memory_of(loop.link.state_dict()), place)

    checkpoint.go_on = noted


def memory_of(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return what a link's state owes, and its velocity, each as one vector; what it has none of is left out."""
    memory = state["memory"]
    parts = {name: memory[name] for name in ("owed", "velocity") if memory.get(name)}
    return {
        name: torch.cat([part.flatten().double() for _, part in sorted(each.items())])
        for name, each in parts.items()
    }

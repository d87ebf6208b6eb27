"""Kinds of faults: what is drawn, what is done, and what must come of it.

A scenario ends well in one of these ways, and is a failure in every other:

- ``same bits``: the run went on as if nothing had happened, to the bits of an undisturbed one.
- ``restarted``: every rank said what was wrong, in bounded time; started again, the run went on from its last
  checkpoint to the bits, and the bytes sent, of an undisturbed one.
- ``refused``: what was damaged was refused with a reason; from the checkpoint before it the run came to the same
  bits.
- ``went on``: steps were skipped, or other numbers of ranks went on; nothing of what was owed was lost, all models
  are equal, and the loss lies in the band of undisturbed trainings.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from fault_bench import LIMIT_SECONDS, SAVE_EVERY, STEPS, WORLDS, FaultError, Scenario, saved_before
from fault_points import DAMAGES, MARK_SECONDS, POISONS, Fault, memory_of
from fault_ranks import Running, done, kept

from laconic.lab.folder import RunFolder

_SHORT_SECONDS = 3.0


def kill(story: Scenario) -> str:
    """A rank is killed at some point of some step; the others say so, and the run goes on from its checkpoint."""
    fault = story.draw_point(step=0 if story.chance.random() < 0.1 else 1)
    if fault.step == 0:
        # Before the first step there is only the handshake.
        fault = replace(fault, point=story.chance.choice(("exchange", "sent", "drain")), rank=story.victim)
    story.what = f"rank {fault.rank} of {story.ranks} is killed, {fault.point}, step {fault.step}"
    story.all_said(story.struck(story.job(fault)), killed=fault.rank)
    story.resumed(least=saved_before(fault.step))
    return "restarted"


def kill_at_any_time(story: Scenario) -> str:
    """Ranks are killed from outside, whatever they are doing, one or all of them."""
    mark = Fault(what="mark", rank=story.victim, step=story.chance.randint(1, STEPS - SAVE_EVERY))
    # The mark holds all of them for a moment, which is not to be where they are caught.
    after = MARK_SECONDS + story.chance.uniform(0.0, 0.3)
    victims = [story.victim] if story.chance.random() < 0.6 else list(range(story.ranks))
    story.what = f"ranks {victims} of {story.ranks} are killed {after - MARK_SECONDS:.3f} s after step {mark.step}"

    def strike(running: Running) -> None:
        time.sleep(after)
        for rank in victims:
            running.signal(rank, signal.SIGKILL)

    ends = story.struck(story.job(mark), strike)
    if len(kept(ends)) == len(ends):
        # It had come to its end before.
        story.same(ends)
        return "same bits"
    for victim in victims:
        ends[victim] = replace(ends[victim], error="AgreedError") if ends[victim].exitcode == -9 else ends[victim]
    story.all_said(ends)
    story.resumed(least=saved_before(mark.step))
    return "restarted"


def other_worlds(story: Scenario) -> str:
    """Ranks are lost and come back: the run goes on on other numbers of them, and what was owed is still owed."""
    worlds = [story.ranks]
    for _ in range(story.chance.randint(1, 3)):
        worlds.append(story.chance.choice([n for n in WORLDS if n != worlds[-1]]))
    story.what = f"worlds of {' -> '.join(map(str, worlds))}"
    step, resume = 1, False
    for turn, ranks in enumerate(worlds):
        before = None if turn == 0 else _mean_in(story.folder)
        story.victim = story.chance.randrange(ranks)
        last = turn == len(worlds) - 1
        least = min(step, STEPS - SAVE_EVERY)
        faults = () if last else (story.draw_point(step=least),)
        job = story.job(*faults, resume=resume, ranks=ranks)
        with Running(job) as running:
            if faults and not running.await_strike(faults[0].rank, LIMIT_SECONDS):
                raise FaultError(f"NOT STRUCK: {faults[0]}")
            ends = running.wait(LIMIT_SECONDS)
            _same_debt(before, running.owed(), ranks)
        story.all_said(ends, killed=None if last else faults[0].rank)
        if RunFolder(story.folder).latest() < saved_before(step):
            raise FaultError(f"LOST: no checkpoint of step {saved_before(step)} or later")
        step, resume = RunFolder(story.folder).latest() + 1, True
    story.finished(ends)
    story.in_band(ends[0].result["final_loss"])
    return "went on"


def _mean_in(folder: Path) -> dict[str, torch.Tensor] | None:
    """Return the mean over ranks of what the last checkpoint owes; None where there is none."""
    run = RunFolder(folder)
    step = run.latest()
    if not step:
        return None
    ranks = run.load_rank(step, "shared")["ranks"]
    return _mean([memory_of(run.load_rank(step, f"rank-{rank:05d}")["link"]) for rank in range(ranks)])


def _mean(each: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([one[name] for one in each]).mean(0) for name in each[0]}


def _same_debt(
    before: dict[str, torch.Tensor] | None, after: Sequence[dict[str, torch.Tensor]], ranks: int
) -> None:
    if len(after) != (ranks if before is not None else 0):
        raise FaultError(f"LOST: {len(after)} of {ranks} ranks went on from a checkpoint")
    if before is None:
        return
    now = _mean(after)
    if before.keys() != now.keys():
        raise FaultError(f"LOST: a checkpoint had {sorted(before)}, and ranks went on with {sorted(now)}")
    for name, vector in before.items():
        off = float((now[name] - vector).abs().max())
        # Memory is kept in float32.
        if not off <= 2e-6 * float(vector.abs().max()):
            raise FaultError(
                f"LOST: what ranks went on with is {off:g} away from the mean of {name} that was saved"
            )


def damaged_on_the_way(story: Scenario) -> str:
    """Bytes of a message are changed: for all who hear it, or for one of them."""
    chance = story.chance
    side = chance.choice(("send", "hear"))
    fault = Fault(
        what=side, rank=story.victim, step=chance.randint(0, STEPS - SAVE_EVERY), detail=chance.choice(DAMAGES),
        seed=chance.randrange(2**30),
    )  # fmt: skip
    story.what = f"what rank {fault.rank} of {story.ranks} {side}s is changed in step {fault.step}: {fault.detail}"
    job = story.job(fault, check_every=1, timeout_seconds=8.0)
    ends = story.struck(job)
    story.all_said(ends)
    if len(kept(ends)) == len(ends):
        story.same(ends)
        return "same bits"
    if not any(ended.error in ("GroupError", "WireError") for ended in ends):
        raise FaultError(f"UNCLEAR: nobody noticed the damage: {[e.in_words[:200] for e in ends]}")
    story.resumed(least=saved_before(fault.step))
    return "restarted"


def storm(story: Scenario) -> str:
    """Gradients are not finite on some ranks in some steps: these are skipped, and nothing of it is remembered."""
    chance = story.chance
    faults = [
        Fault(
            what="poison", rank=chance.randrange(story.ranks), step=chance.randint(1, STEPS),
            detail=chance.choice(POISONS), seed=chance.randrange(2**30),
        )
        for _ in range(chance.randint(1, 4))
    ]  # fmt: skip
    story.what = ", ".join(f"{f.detail} on rank {f.rank} in step {f.step}" for f in faults)
    ends = done(story.job(*faults), LIMIT_SECONDS)
    story.finished(ends)
    if not any(ended.result["skipped_steps"] for ended in ends):
        raise FaultError("LOST: no step was skipped")
    story.in_band(ends[0].result["final_loss"])
    return "went on"


def pause(story: Scenario) -> str:
    """A rank stands still: for less than an exchange waits nothing is lost, for more all say so."""
    short = story.chance.random() < 0.5
    fault = replace(story.draw_point(), what="pause")
    seconds = story.chance.uniform(0.3, 1.5) if short else _SHORT_SECONDS + 4.0
    timeout = 20.0 if short else _SHORT_SECONDS
    story.what = (
        f"rank {fault.rank} of {story.ranks} stands still for {seconds:.1f} s, {fault.point}, step {fault.step}; "
        f"an exchange waits {timeout:g} s"
    )

    def strike(running: Running) -> None:
        time.sleep(seconds)
        running.signal(fault.rank, signal.SIGCONT)

    ends = story.struck(story.job(fault, timeout_seconds=timeout), strike)
    story.all_said(ends)
    if len(kept(ends)) == len(ends):
        story.same(ends)
    else:
        story.resumed(least=saved_before(fault.step))
    if short and len(kept(ends)) < len(ends):
        raise FaultError(f"LOST: the pause was shorter than an exchange waits: {[e.in_words[:200] for e in ends]}")
    return "same bits" if len(kept(ends)) == len(ends) else "restarted"


def cut(story: Scenario) -> str:
    """A host's cable is pulled, and plugged in again: in time, or after the others have given up."""
    assert story.bench.hosts is not None
    hosts = story.bench.hosts
    short = story.chance.random() < 0.5
    timeout = 20.0 if short else _SHORT_SECONDS
    seconds = story.chance.uniform(0.2, 1.5) if short else timeout + 5.0
    mark = replace(story.draw_point(), what="mark", rank=story.victim, point=story.chance.choice(("batch", "talk")))
    story.what = (
        f"the cable of host {story.victim} of {story.ranks} is out for {seconds:.1f} s from step {mark.step} on; "
        f"an exchange waits {timeout:g} s"
    )

    def strike(running: Running) -> None:
        hosts.connect(story.victim, up=False)
        try:
            last = time.monotonic() + seconds
            while time.monotonic() < last and (short or running.alive()):
                time.sleep(0.05)
        finally:
            hosts.connect(story.victim, up=True)

    with story.bench.at_the_hosts:
        ends = story.struck(story.job(mark, timeout_seconds=timeout, hosts=hosts), strike)
    story.all_said(ends)
    if short:
        story.same(ends)
        return "same bits"
    if kept(ends):
        raise FaultError(f"LOST: a rank finished without the others: {[e.in_words[:100] for e in ends]}")
    story.resumed(least=saved_before(mark.step))
    return "restarted"


def clocks_apart(story: Scenario) -> str:
    """The clocks of one rank are days away, run faster or slower, and leap: nothing depends on them."""
    fault = Fault(
        what="clock", rank=story.victim, step=story.chance.randint(1, STEPS), seed=story.chance.randrange(2**30)
    )
    story.what = f"the clocks of rank {story.victim} of {story.ranks} are wrong, and leap in step {fault.step}"
    story.same(story.struck(story.job(fault)))
    return "same bits"

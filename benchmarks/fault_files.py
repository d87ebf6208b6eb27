"""Faults of files: a disk that is full, a checkpoint that was damaged. fault_kinds.py says how scenarios end."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

from fault_bench import LIMIT_SECONDS, SAVE_EVERY, FaultError, Scenario
from fault_ranks import done, kept

from laconic.lab.folder import RunFolder


def full_disk(story: Scenario) -> str:
    """The disk has room for so much and no more; with more room the run goes on."""
    room = int(story.chance.uniform(2e4, 1.1 * _bytes_needed(story)))
    story.what = f"a disk of {room:,} bytes"
    disk = story.folder
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "none", disk], check=True)
    try:
        story.folder = disk / "run"
        ends = done(story.job(), LIMIT_SECONDS)
        failed = not kept(ends)
        if failed and {ended.error for ended in ends} != {"AgreedError"}:
            raise FaultError(f"UNCLEAR: not all ranks say the same: {[e.in_words[:200] for e in ends]}")
        if not failed:
            story.same(ends)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        told = re.search(r"The last one, of step (\d+), is whole", ends[0].message)
        story.resumed(least=int(told[1]) if told else 0)
    finally:
        subprocess.run(["umount", disk], check=True)
    return "restarted" if failed else "same bits"


def _bytes_needed(story: Scenario) -> int:
    """Return about how much room a run has need of at the most."""
    folder = story.bench.stopped(story.word, story.ranks, story.seed)
    # Two are kept while the third is written; files take whole pages.
    size = sum(4096 * -(-file.stat().st_size // 4096) for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder)
    return size * 3 // 2


def damaged_checkpoint(story: Scenario) -> str:
    """A file of the last checkpoint is damaged: it is refused, and the run goes on from the one before."""
    chance = story.chance
    story.folder = story.bench.stopped(story.word, story.ranks, story.seed)
    run = RunFolder(story.folder)
    step = run.latest()
    last = story.folder / "checkpoints" / f"step-{step:08d}"
    file = chance.choice(sorted(path for path in last.iterdir() if path.is_file()))
    how = chance.choice(("a bit", "zeros", "cut", "empty", "longer", "gone", "another part", "an older part"))
    story.what = f"{file.name} of the last checkpoint: {how}"
    before = file.read_bytes()
    _damage(file, how, chance)
    unlike = not file.exists() or file.read_bytes() != before
    ends = done(story.job(resume=True), LIMIT_SECONDS)
    if file.name == "sealed" or not unlike:
        # It holds nothing but its name: without it the one before counts.
        story.same(ends)
        return "same bits"
    story.all_said(ends)
    if kept(ends) or not all(file.stem in ended.message for ended in ends):
        raise FaultError(f"LOST: it was not refused by its name: {[e.in_words[:200] for e in ends]}")
    shutil.rmtree(last)
    story.resumed(least=step - SAVE_EVERY)
    return "refused"


def _damage(file: Path, how: str, chance: random.Random) -> None:
    raw = bytearray(file.read_bytes())
    place = chance.randrange(len(raw))
    if how == "gone":
        file.unlink()
        return
    if how in ("another part", "an older part") and file.suffix in (".pt", ".sha256"):
        others = [path for path in file.parent.glob("*.pt") if path.stem != file.stem]
        older = [path / f"{file.stem}.pt" for path in file.parent.parent.glob("step-*") if path != file.parent]
        other = chance.choice(others if how == "another part" else older)
        for end in (".pt", ".sha256"):
            shutil.copy(other.with_suffix(end), file.with_suffix(end))
        return
    if how == "a bit":
        raw[place] ^= 1 << chance.randrange(8)
    elif how == "zeros":
        raw[place : place + 512] = bytes(len(raw[place : place + 512]))
    elif how == "cut":
        del raw[place:]
    elif how == "empty":
        raw.clear()
    else:
        raw += bytes([chance.randrange(256)])
    file.write_bytes(raw)

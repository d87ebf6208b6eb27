"""What ranks owe where one of them has chosen: how much of it is common to all, and whether places come again.

    python benchmarks/what_is_owed.py --data-home HOME --out benchmarks/results/what_is_owed.json
    python benchmarks/what_is_owed.py --table benchmarks/results/what_is_owed.json    # for docs/results.md

Rounds of four steps of an LSTM of 2 x 200 on Penn Treebank, four ranks, at the full rate; all messages are read.
If what ranks owe were their own noise alone, their signs would be equal in half of the places.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import table_language
import torch
import tyro
from torch import Tensor
from virtual_runs import train_here

from laconic.arguments import check_whole
from laconic.exchanges import LedMean
from laconic.lab.data.home import default_home
from laconic.lab.signals import noted_wishes
from laconic.lab.spec import Spec
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Gathered, Mean, Steps

ROW = "ptb, 30 epochs", "led 0.34%, 1 bit, ahead, I=4, rate 20, outer 1, settled"
_BLOCK, _KEPT, _ANYWHERE = 64, 0.99, 0.1
_SPANS = 5


@dataclass(frozen=True, kw_only=True)
class Owed:
    """Train, look at every message, and write down what ranks had in common."""

    out: Path = Path("what_is_owed.json")
    """Where the result goes."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    data_home: Path = field(default_factory=default_home)
    """Where Penn Treebank lies."""
    hidden: int = 200
    """Units of a layer."""
    steps: int = 3000
    """Steps of four workers."""

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 4 * _SPANS, "The table has so many spans of rounds of four steps.")


@dataclass(kw_only=True)
class Seen:
    """What every round has shown; ``often`` is how often, of late, each block of entries was chosen from."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    often: Tensor = field(default_factory=lambda: torch.empty(0))

    def look(self, mean: Mean, entries: int, leader: int) -> None:
        """Take in the messages of a round."""
        assert isinstance(mean.values, Gathered)
        assert isinstance(mean.values.known, Tensor)
        told = torch.stack([payload.known for payload in mean.values.payloads])
        led, others = told[leader], torch.cat([told[:leader], told[leader + 1 :]])
        self.rounds.append(
            {
                "alike": float((others.sign() == led.sign()).double().mean()),
                "smaller": float(led.abs().mean() / others.abs().mean()),
                **self._bits(mean.values.known, entries),
            }
        )

    def _bits(self, places: Tensor, entries: int) -> dict[str, float]:
        """Return the bits of a place if all are as likely, and if those are likelier that came before."""
        count, blocks = places.numel(), torch.div(places, _BLOCK, rounding_mode="floor")
        if not self.often.numel():
            self.often = torch.zeros(-(-entries // _BLOCK), dtype=torch.float64)
        known = self.often[blocks] / self.often.sum().clamp(min=1) / _BLOCK
        likely = (1 - _ANYWHERE) * known + _ANYWHERE / entries
        self.often.mul_(_KEPT).index_add_(0, blocks, torch.ones(count, dtype=torch.float64))
        # Of so many independent places, each with an expected number of choices.
        return {
            "bits": math.log2(entries / count) + 1 / math.log(2),
            "bits, known": float(-(count * likely).log2().mean()) + 1 / math.log(2),
        }


@dataclass(frozen=True, kw_only=True)
class Watched:
    """An exchange that is looked at by the first rank."""

    name: ClassVar[str] = "watched"
    lossless: ClassVar[bool] = False
    tells: ClassVar[bool] = True
    inner: LedMean
    seen: Seen = field(repr=False, compare=False)

    def check(self, compressor: Compressor) -> None:
        """Refuse what the exchange refuses."""
        self.inner.check(compressor)

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Do what the exchange does, and look on."""
        leader = envelope.step % envelope.world_size
        mean = yield from self.inner.steps(x, segments, compressor, replace(envelope, turn=leader))
        if envelope.rank == 0:
            self.seen.look(mean, x.numel(), leader)
        return mean


def _run(options: Owed) -> dict[str, Any]:
    row, seen = table_language.ROWS[ROW], Seen()
    assert isinstance(row.method.exchange, LedMean)
    method = replace(row.method, exchange=Watched(inner=row.method.exchange, seen=seen))
    training = replace(row.training, epochs=None, steps=options.steps, settle="none", schedule="constant")
    spec = Spec(
        task=replace(table_language.PTB, hidden=options.hidden, embedding=options.hidden), training=training,
        method=method.name, workers=4, device="cpu", data_home=str(options.data_home), checkpoint_every=None,
    )  # fmt: skip
    with noted_wishes() as wish:
        train_here(spec, method, wish)
    told = shlex.join("HOME" if word == str(options.data_home) else word for word in sys.argv[1:])
    length = len(seen.rounds) // _SPANS
    return {
        "command": f"python benchmarks/what_is_owed.py {told}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "row": "/".join(ROW),
        "hidden": options.hidden,
        "steps": options.steps,
        "rounds": len(seen.rounds),
        "spans": [_mean(seen.rounds[i * length : (i + 1) * length]) for i in range(_SPANS)],
    }


def _mean(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(one[key] for one in rounds) / len(rounds) for key in rounds[0]}


def _print(result: dict[str, Any]) -> None:
    length = result["steps"] // len(result["spans"])
    print(
        "| steps | signs like the leader's | the leader's values, times theirs | bits a place | if known before |"
    )
    print("|---|---:|---:|---:|---:|")
    for i, span in enumerate(result["spans"]):
        steps = f"{i * length:,} to {(i + 1) * length:,}"
        print(f"| {steps} | {span['alike']:.1%} | {span['smaller']:.2f} | {span['bits']:.2f} | ", end="")
        print(f"{span['bits, known']:.2f} |")


def main(options: Owed) -> None:
    if options.table is None:
        options.out.write_text(json.dumps(_run(options), indent=1) + "\n")
    _print(json.loads((options.table or options.out).read_text()))


if __name__ == "__main__":
    main(tyro.cli(Owed, description=__doc__))

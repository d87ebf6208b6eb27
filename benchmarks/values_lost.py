"""How much of what ranks have where one has chosen is lost by rounding, in each codec, while they train.

    python benchmarks/values_lost.py --data-home HOME --out benchmarks/results/values_lost.json

Rounds of four steps of the small LSTM of ``table_values.py``. Values travel in ``octaves``; what every other codec
would have lost of the same values is worked out beside it. Shares are of the sum of squares, the mean over all
messages of the second half.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
import tyro
from table_values import GROUP, ROWS
from torch import Tensor
from virtual_runs import train_here

from laconic.codecs import by_name
from laconic.coding import Codec, Coded, Form
from laconic.lab.data.home import default_home
from laconic.lab.signals import noted_wishes
from laconic.lab.spec import Spec
from laconic.wire.values import meant

WORDS = ("sign", "octaves2", "binned", "int2", "octaves", "int4", "int8")
ROW = "led 1.38%, octaves, 0.625 ahead, I=4"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Train, look at every message, and write down what each codec would have lost."""

    out: Path = Path("values_lost.json")
    """Where the result goes."""
    data_home: Path = field(default_factory=default_home)
    """Where Penn Treebank lies."""
    steps: int = 1200
    """Steps of four workers."""


@dataclass(frozen=True, kw_only=True)
class Watching:
    """A codec beside which others are tried; what they would lose is kept in ``seen``, a row a message."""

    name: ClassVar[str] = "watching"
    inner: Codec
    seen: list[list[float]] = field(default_factory=list, repr=False, compare=False)

    @property
    def form(self) -> Form:
        """That of the codec which is used."""
        return self.inner.form

    def encode(self, values: Tensor, ends: Tensor, *, seed: int) -> Coded:
        """Do what the codec does, and look on."""
        whole = float(values.double().square().sum())
        if whole:
            self.seen.append([self._lost(by_name(word), values, ends) / whole for word in WORDS])
        return self.inner.encode(values, ends, seed=seed)

    @staticmethod
    def _lost(codec: Codec, values: Tensor, ends: Tensor) -> float:
        read = meant(codec.encode(values, ends, seed=0), ends, codec.form)
        return float((values - read).double().square().sum())


def main(options: Lost) -> None:
    row = ROWS[GROUP, ROW]
    watching = Watching(inner=by_name("octaves"))
    method = replace(row.method, exchange=replace(row.method.exchange, values=watching))
    spec = Spec(
        task=row.task, training=replace(row.training, steps=options.steps, settle="none"), method=method.name,
        workers=4, device="cpu", data_home=str(options.data_home), checkpoint_every=None,
    )  # fmt: skip
    with noted_wishes() as wish:
        train_here(spec, method, wish)
    half = torch.tensor(watching.seen[len(watching.seen) // 2 :])
    told = shlex.join("HOME" if word == str(options.data_home) else word for word in sys.argv[1:])
    result = {
        "command": f"python benchmarks/values_lost.py {told}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "row": ROW,
        "steps": options.steps,
        "messages": len(half),
        "lost": dict(zip(WORDS, half.mean(0).tolist(), strict=True)),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for word, share in result["lost"].items():
        print(f"{word:10} {by_name(word).form.bits} bits a value: {share:.1%} lost")


if __name__ == "__main__":
    main(tyro.cli(Lost, description=__doc__))

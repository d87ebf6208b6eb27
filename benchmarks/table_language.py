"""Language: LSTMs of 2 x 650 and 2 x 1500 on Penn Treebank, WikiText-2, AWD-LSTM; every method from the same start.

    python benchmarks/table_language.py --virtual --device cuda --jobs 16 --ranks 4 --data-home HOME \
        --out benchmarks/results/table_language.json
    python benchmarks/table_language.py --table benchmarks/results/table_language.json    # for docs/results.md

HOME is where ``laconic data import ptb`` or ``laconic data get ptb`` has left the text. Workers share a process,
the exchange is the library's own; bytes are those that one worker hands over. Six epochs show where methods part;
ten are for those that hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import tyro
from language_methods import (
    ANOTHER_TEXT,
    ANOTHER_WAY,
    AS_THE_AUTHORS,
    AUTHORS_LONGER,
    CLIP,
    EIGHT,
    FEWEST_BYTES,
    FOUR_BITS,
    HOW_FAR,
    LONGER,
    ONE_THING_ELSE,
    PARENT,
    SETTLED,
    SHORTER_STEPS,
    THOSE_THAT_HOLD,
    TWO,
    WHERE_THEY_PART,
    WITH_MOMENTUM,
)
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

PTB = Lm(data="ptb", layers=2, hidden=650, dropout=0.4, tied=True)
DROPPED = replace(PTB, dropout=0.5)
LARGE = replace(PTB, hidden=1500, dropout=0.6)
WIKITEXT = replace(PTB, data="wikitext-2")
AWD = Lm(data="ptb", model="awd")
SIX = Training(epochs=6.0, batch=5, rate=30.0, clip=CLIP, schedule="linear", final=0.02)
MOMENTUM = replace(SIX, rate=3.0, momentum=0.9)


def _group(name: str, row: Row, methods: Mapping[str, laconic.Method]) -> dict[tuple[str, str], Row]:
    return {(name, each): replace(row, method=method) for each, method in methods.items()}


def _rated(name: str, row: Row, methods: Mapping[str, tuple[float, laconic.Method]]) -> dict[tuple[str, str], Row]:
    """Rows with a rate of their own."""
    return {
        (name, each): replace(row, training=replace(row.training, rate=rate), method=method)
        for each, (rate, method) in methods.items()
    }


def _settled(row: Row, word: str = "sign") -> Row:
    """The row with what ranks owe sent at the end."""
    return replace(row, training=replace(row.training, settle=word))


def _of_two(row: Row) -> Row:
    """The row with as many streams, dealt out to two workers."""
    return replace(row, training=replace(row.training, batch=10), ranks=2)


_SIX = Row(task=PTB, training=SIX, method=laconic.dense())
_TEN = replace(_SIX, training=replace(SIX, epochs=10.0), weight=2.0)
_THIRTY = replace(_SIX, training=replace(SIX, epochs=30.0), weight=6.0)
_SETTLED, _SETTLED_FINELY = _settled(_THIRTY), _settled(_THIRTY, "octaves2")
_TEN_SETTLED = replace(_settled(_TEN), weight=2.5)
_TEN_OF_EIGHT = replace(_TEN, training=replace(_TEN.training, batch=3), ranks=8, weight=3.0)
_SIX_OF_WIKITEXT = replace(_SIX, task=WIKITEXT, weight=9.0)
_TWO_OF_WIKITEXT = replace(_SIX_OF_WIKITEXT, training=replace(SIX, epochs=2.0), weight=3.0)
_AWD = replace(_SIX, task=AWD, training=replace(SIX, epochs=4.0, decay=1.2e-6), ranks=8, weight=4.0)
ROWS = {
    **_group("ptb, 6 epochs", _SIX, WHERE_THEY_PART | ONE_THING_ELSE),
    **_rated("ptb, 6 epochs", _SIX, ANOTHER_WAY),
    **_rated("ptb, 6 epochs", _settled(_SIX), HOW_FAR),
    **_group("ptb, 10 epochs", _TEN, THOSE_THAT_HOLD),
    **_rated("ptb, 10 epochs", _TEN, SHORTER_STEPS),
    **_rated("ptb, 10 epochs", _TEN_SETTLED, FEWEST_BYTES),
    **_rated("ptb, 30 epochs", _THIRTY, LONGER),
    **_rated("ptb, 30 epochs", _SETTLED, FEWEST_BYTES),
    **_rated("ptb, 30 epochs", _SETTLED_FINELY, FOUR_BITS),
    **_rated("ptb, 30 epochs, dropout 0.5", replace(_THIRTY, task=DROPPED), {PARENT: LONGER[PARENT]}),
    **_rated("ptb, 30 epochs, dropout 0.5", replace(_SETTLED, task=DROPPED), SETTLED),
    **_rated("ptb, 8 workers, 10 epochs", replace(_TEN_OF_EIGHT, weight=2.0), {PARENT: LONGER[PARENT]}),
    **_rated("ptb, 8 workers, 10 epochs", _settled(_TEN_OF_EIGHT), EIGHT),
    **_rated("ptb, 2 workers, 10 epochs", _of_two(_TEN), {PARENT: LONGER[PARENT]}),
    **_rated("ptb, 2 workers, 10 epochs", _settled(_of_two(_TEN)), TWO),
    **_rated("ptb, 2 workers, 30 epochs", _of_two(_THIRTY), {PARENT: LONGER[PARENT]}),
    **_rated("ptb, 2 workers, 30 epochs", _settled(_of_two(_THIRTY)), TWO),
    # Whether what must be sent grows with the model.
    **_rated("ptb, 2 x 1500, 10 epochs", replace(_TEN, task=LARGE, weight=8.0), {PARENT: LONGER[PARENT]}),
    **_rated("ptb, 2 x 1500, 10 epochs", replace(_TEN_SETTLED, task=LARGE, weight=10.0), FEWEST_BYTES),
    **_group("ptb, 6 epochs, momentum", replace(_SIX, training=MOMENTUM), WITH_MOMENTUM),
    **_group("wikitext-2, 2 epochs", _TWO_OF_WIKITEXT, ANOTHER_TEXT),
    # A larger model and a longer text, for the goal of 10,000x.
    **_rated("wikitext-2, 2 epochs", _settled(_TWO_OF_WIKITEXT), FEWEST_BYTES),
    **_rated("wikitext-2, 6 epochs", _SIX_OF_WIKITEXT, {PARENT: LONGER[PARENT]}),
    **_rated("wikitext-2, 6 epochs", _settled(_SIX_OF_WIKITEXT), FEWEST_BYTES),
    **_group("ptb, awd, 8 workers, 4 epochs", _AWD, AS_THE_AUTHORS),
    **_rated(
        "ptb, awd, 8 workers, 20 epochs",
        replace(_AWD, training=replace(_AWD.training, epochs=20.0), weight=9.0),
        AUTHORS_LONGER,
    ),
}
TABLE = Table(parent=PARENT, rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))

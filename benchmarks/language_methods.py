"""The methods of the language tables, by the names of their rows; some come with a rate of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import compositions
from compositions import clipped, cold, largest

import laconic

CLIP = 0.25
PARENT = "parallel clipping"


_clipped = partial(clipped, clip=CLIP)
topk = partial(largest, clip=CLIP)
ahead = partial(compositions.ahead, clip=CLIP)


def sdagc(c: float = 20.0, **settings: Any) -> laconic.Method:
    """Return SDAGC with one bit a value, and a threshold a layer where nothing else is said."""
    settings = {"clip": CLIP, "values": "sign", "scope": "layer"} | settings
    return laconic.sdagc(c, **settings) if "law" in settings else cold(c, **settings)


def warm(c: float, **settings: Any) -> laconic.Method:
    """Return SDAGC with one bit a value that does not begin with silence."""
    return compositions.warm(sdagc(c, **settings), c)


def celgc(every: int, **settings: Any) -> laconic.Method:
    """Return CELGC; its authors' gamma over eta is this clip."""
    return laconic.celgc(every, **{"clip": CLIP} | settings)


OUTER = {"outer_rate": 0.7, "outer_momentum": 0.6}
LOOSE, TIGHT = {"convention": "mean"}, {"convention": "local"}

# Fewer bytes yet: ranks take turns, in rounds of four steps with an outer step.
FEWEST = {
    f"led {100 * d:g}%, 1 bit, ahead, I=4, outer momentum": ahead(topk(d, exchange="led"), 4, **TIGHT, **OUTER)
    for d in (1e-2, 4e-3)
}

WHERE_THEY_PART = {
    PARENT: laconic.parallel_clip(CLIP),
    "celgc I=4, clip 0.5": celgc(4, **LOOSE),
    "celgc I=16, clip 0.5": celgc(16, **LOOSE),
    "celgc I=16, clip 0.5, outer momentum": celgc(16, **LOOSE, **OUTER),
    "celgc I=16": celgc(16),
    **{f"celgc I={i}, outer momentum": celgc(i, **OUTER) for i in (4, 8, 16, 32)},
    "topk 0.1%": _clipped(laconic.topk(0.001, memory="update")),
    "dgc 0.1%": laconic.dgc(0.001, clip=CLIP),
    "cat bits": _clipped(laconic.cat("bits")),
    "spartan, 32 bits": laconic.spartan(clip=CLIP, values="exact"),
    **{f"topk {100 * d:g}%, 1 bit": topk(d) for d in (3e-3, 1e-3)},
    "topk 0.1%, one selection": topk(0.001, values="exact"),
    "led 0.3%, 1 bit": topk(0.003, exchange="led"),
    **{f"topk {100 * d:g}%, 1 bit, ahead": ahead(topk(d)) for d in (3e-3, 1e-3, 3e-4)},
    "topk 0.1%, 1 bit, half ahead": ahead(topk(0.001), share=0.5),
    **{f"led {100 * d:g}%, 1 bit, ahead": ahead(topk(d, exchange="led")) for d in (1e-2, 3e-3, 1e-3)},
    **{f"sdagc c={c}, per layer, 1 bit": sdagc(float(c)) for c in (15, 20)},
    "sdagc c=15, per layer, 1 bit, warm": warm(15.0),
    **{f"sdagc c={c}, 1 bit": sdagc(float(c), scope="model") for c in (20, 30)},
    **{f"sdagc c={c}, 1 bit, warm": warm(float(c), scope="model") for c in (15, 20, 30)},
    **{f"sdagc c={c}, 1 bit, ahead": ahead(sdagc(float(c), scope="model")) for c in (10, 20)},
    "sdagc c=20, 1 bit, warm, ahead": ahead(warm(20.0, scope="model")),
    **FEWEST,
}

# SDAGC as it is above (c = 20, one threshold, 1 bit, warm), with one thing different.
BASE = warm(20.0, scope="model")
ONE_THING_ELSE = {
    "sdagc c=20, 1 bit, warm, not clipped": replace(BASE, clip=None),
    # Without memory nothing is ever twenty deviations long.
    "sdagc c=3, 1 bit, no memory": replace(sdagc(3.0, scope="model", momentum=False), memory="none"),
    "sdagc c=20, 1 bit, warm, rate not revised": warm(20.0, scope="model", revision="none"),
    "sdagc c=20, 1 bit, warm, damped": warm(20.0, scope="model", revision="damp"),
    "sdagc c=20, int4, warm": warm(20.0, scope="model", values="int4"),
    "sdagc c=20, 32 bits, warm": warm(20.0, scope="model", values="exact"),
    "sdagc 0.2% held, 1 bit": sdagc(law="target", density=0.002, scope="model"),
    "sdagc c from 10 to 20, 1 bit": sdagc(law="progress", scope="model"),
}

THOSE_THAT_HOLD = {
    PARENT: laconic.parallel_clip(CLIP),
    **{f"celgc I={i}, outer momentum": celgc(i, **OUTER) for i in (8, 16, 32)},
    **{f"topk {100 * d:g}%, 1 bit, ahead": ahead(topk(d)) for d in (1e-3, 3e-4)},
    **{f"led {100 * d:g}%, 1 bit, ahead": ahead(topk(d, exchange="led")) for d in (3e-3, 2e-3, 1e-3)},
    # At the bytes of 0.3% and 0.1%.
    **{
        f"led {100 * d:g}%, 16 parts, 1 bit, ahead": ahead(topk(d, exchange="led", parts=16))
        for d in (4.3e-3, 1.4e-3)
    },
    **{f"sdagc c={c}, 1 bit, ahead": ahead(sdagc(float(c), scope="model")) for c in (10, 15, 20)},
    "sdagc c=20, 1 bit, warm": warm(20.0, scope="model"),
    **FEWEST,
}

LONG = {"outer_rate": 1.0, "outer_momentum": 0.6}
# Shorter local steps, longer outer ones: rounds of 16 steps with a rate of their own.
SHORTER_STEPS = {
    "celgc I=16, rate 15, outer 1, momentum 0.7": (15.0, celgc(16, outer_rate=1.0, outer_momentum=0.7)),
    **{f"celgc I={i}, rate 20, outer 1, momentum 0.6": (20.0, celgc(i, **LONG)) for i in (2, 8, 16, 32)},
    # The same rounds with next to nothing of their drifts sent.
    **{
        f"led {100 * d:g}%, 1 bit, ahead, I={i}, rate 20, outer 1": (
            20.0,
            ahead(topk(d, exchange="led"), i, **TIGHT, **LONG),
        )
        for i, d in ((4, 3e-3), (16, 2e-2))
    },
    "topk 0.4%, 1 bit, ahead, I=16, rate 20, outer 1": (20.0, ahead(topk(4e-3), 16, **TIGHT, **LONG)),
    "led 2%, 1 bit, I=16, rate 20, outer 1": (
        20.0,
        celgc(16, send=replace(topk(2e-2, exchange="led"), clip=None), **LONG),
    ),
}
# For the bytes of 0.1% with turns: a shorter step, a longer look ahead, many entries first and few at the end.
LED = topk(0.001, exchange="led")
ANOTHER_WAY = {
    "led 0.1%, 1 bit, ahead, rate 20": (20.0, ahead(LED)),
    "led 0.1%, 1 bit, half ahead": (30.0, ahead(LED, share=0.5)),
    "led 0.3% to 0.03%, 1 bit, ahead": (
        30.0,
        ahead(replace(topk(0.0003, exchange="led"), tuner=laconic.Warmup(start=0.003, steps=7962))),
    ),
}


# Whether what comes late is made up for in a longer training, for the goal of 10,000x. At the end what is still
# owed is sent too, a bit an entry. With more dropped, for in 30 epochs the model learns its text by heart.
def few(
    density: float, values: str = "sign", *, every: int = 4, parts: int = 1, **settings: Any
) -> tuple[float, laconic.Method]:
    """Return a rate and the fewest bytes that nearly hold: ranks take turns in rounds of a few steps."""
    send = topk(density, exchange="led", values=values, parts=parts)
    return 20.0, ahead(send, every, **TIGHT, **LONG, **settings)


LONGER = {
    PARENT: (30.0, laconic.parallel_clip(CLIP)),
    # What rounds and their outer step lose by themselves.
    "celgc I=4, rate 20, outer 1, momentum 0.6": (20.0, celgc(4, **LONG)),
    "led 0.3%, 1 bit, ahead, I=4, rate 20, outer 1": few(3e-3),
}
# For the bytes of 0.34%: where parts of the model take turns, positions take half the bits.
PARTS = {
    f"led {100 * d:g}%, {n} parts, 1 bit, ahead, I=4, rate 20, outer 1, settled": few(d, parts=n)
    for d, n in ((5.3e-3, 16), (6e-3, 32))
}


def every_step(density: float, parts: int = 1) -> tuple[float, laconic.Method]:
    """Return a rate and what sends in every step."""
    return 30.0, ahead(topk(density, exchange="led", parts=parts))


EVERY_STEP = {
    "led 0.075%, 1 bit, ahead, settled": every_step(7.5e-4),
    "led 0.1%, 16 parts, 1 bit, ahead, settled": every_step(1e-3, 16),
    "led 0.115%, 32 parts, 1 bit, ahead, settled": every_step(1.15e-3, 32),
}
SETTLED = {
    "led 0.34%, 1 bit, ahead, I=4, rate 20, outer 1, settled": few(3.4e-3),
    # Further than 1/4 of the debt, for the outer momentum makes 2.5 times of what arrives.
    "led 0.34%, 1 bit, 0.625 ahead, I=4, rate 20, outer 1, settled": few(3.4e-3, share=0.625),
}
# Rounds of two steps.
SHORTER_ROUNDS = {"led 0.165%, 1 bit, 0.4 ahead, I=2, rate 20, outer 1, settled": few(1.65e-3, every=2, share=0.4)}
# Fewer workers with larger batches each: what they owe is less their own noise (benchmarks/table_turns.py).
TWO = {
    f"led {100 * d:g}%, 1 bit, 0.8 ahead, I={i}, rate 20, outer 1, settled": few(d, every=i, share=0.8)
    for d, i in ((1.9e-3, 4), (8.8e-4, 2))
}
# More workers: each pays for positions in fewer of its rounds, and more entries are sent for the same bytes.
EIGHT = {"led 0.26%, 1 bit, 0.2 ahead, I=2, rate 20, outer 1, settled": few(2.6e-3, every=2, share=0.2)}
# How far ahead, and for how long alone.
HOW_FAR = {
    f"led {100 * d:g}%, 1 bit, {share:g} ahead, I={i}, rate 20, outer 1, settled": few(d, every=i, share=share)
    for d, i, share in ((3.4e-3, 4, 0.25), (3.4e-3, 4, 0.4), (3.4e-3, 4, 0.625), (1.7e-3, 2, 0.625))
}
# What is held against 10,000x.
FEWEST_BYTES = SETTLED | PARTS | EVERY_STEP | SHORTER_ROUNDS
# Half as many entries at the same bytes, with four bits each; at the end two.
FOUR_BITS = {
    f"led 0.18%, {values}, 0.625 ahead, I=4, rate 20, outer 1, settled": few(1.8e-3, values, share=0.625)
    for values in ("octaves", "int4")
}

ANOTHER_TEXT = {
    PARENT: laconic.parallel_clip(CLIP),
    "celgc I=16, outer momentum": celgc(16, **OUTER),
    "sdagc c=15, 1 bit, warm": warm(15.0, scope="model"),
    "led 0.3%, 1 bit, ahead": ahead(topk(0.003, exchange="led")),
}

# CELGC's own setting: eta 30, gamma 7.5, eight workers.
AS_THE_AUTHORS = {
    PARENT: laconic.parallel_clip(CLIP),
    **{f"celgc I={i}": celgc(i) for i in (4, 16)},
    "celgc I=16, outer momentum": celgc(16, **OUTER),
    "led 0.3%, 1 bit, ahead": ahead(topk(0.003, exchange="led")),
}
AUTHORS_LONGER = {
    PARENT: (30.0, laconic.parallel_clip(CLIP)),
    "celgc I=4": (30.0, celgc(4)),
    **{f"celgc I={i}, rate 20, outer 1, momentum 0.6": (20.0, celgc(i, **LONG)) for i in (4, 16)},
}

WITH_MOMENTUM = {
    PARENT: laconic.parallel_clip(CLIP),
    "sdagc c=40, int4, warm": warm(40.0, scope="model", values="int4"),
    "sdagc c=40, int4, warm, not masked": warm(40.0, scope="model", values="int4", masking=False),
    "sdagc c=40, int4, warm, momentum outside": warm(40.0, scope="model", values="int4", momentum=False),
}

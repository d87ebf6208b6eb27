"""What recipes share: how what ranks chose travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from laconic import codecs
from laconic.arguments import check_choice, check_whole
from laconic.coding import Codec
from laconic.exchanges import GatherMean, InParts, LedMean, ShardedMean, SmallestMean
from laconic.types import Exchange, Over

Carrier = Literal["gather", "sharded", "smallest", "led"]


def carried(exchange: Carrier, values: Codec | str, *, over: Over = "ranks", parts: int = 1) -> Exchange:
    """Return the exchange of that word, with values written by a codec or by what its word names, part by part.

    >>> carried("gather", "int4")
    GatherMean(over='ranks', values=Linear(bits=4, rounding='nearest', seed=0))
    """
    check_choice("exchange", exchange, get_args(Carrier))
    check_whole("parts", parts, 1, "For the whole model in every step write 1.")
    whole = _of_the_whole(exchange, values, over)
    if parts == 1:
        return whole
    if not isinstance(whole, GatherMean | LedMean):
        raise ValueError(
            f"parts={parts} is for messages that name entries, got exchange={exchange!r}. Write exchange='gather' "
            f"or 'led', or leave parts=1."
        )
    return InParts(inner=whole, parts=parts)


def _of_the_whole(exchange: Carrier, values: Codec | str, over: Over) -> Exchange:
    codec = codecs.by_name(values)
    if exchange == "gather":
        return GatherMean(over=over, values=codec)
    if over != "ranks":
        raise ValueError(
            f"over={over!r} counts who sent an entry, which adding up does not tell, got exchange={exchange!r}. "
            f"Write exchange='gather', or leave over='ranks'."
        )
    others: dict[str, Callable[..., Exchange]] = {"sharded": ShardedMean, "smallest": SmallestMean, "led": LedMean}
    return others[exchange](values=codec)

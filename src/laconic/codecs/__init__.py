"""HOW values are written: exact, or rounded to a few bits with what that loses still owed.

A re-export here is a codec's registration.
"""

from collections.abc import Callable

from laconic.codecs.bfloat16 import BFloat16
from laconic.codecs.binned import Binned
from laconic.codecs.exact import Exact
from laconic.codecs.linear import Linear
from laconic.codecs.octaves import Octaves
from laconic.codecs.one_bit import OneBit
from laconic.codecs.qsgd import Qsgd
from laconic.codecs.sign_mean import SignMean
from laconic.codecs.terngrad import TernGrad
from laconic.coding import Codec

__all__ = [
    "WORDS",
    "BFloat16",
    "Binned",
    "Exact",
    "Linear",
    "Octaves",
    "OneBit",
    "Qsgd",
    "SignMean",
    "TernGrad",
    "by_name",
]

# What a person may write for a codec.
WORDS: dict[str, Callable[[], Codec]] = {
    "exact": Exact,
    "bfloat16": BFloat16,
    "int8": lambda: Linear(bits=8),
    "int4": lambda: Linear(bits=4),
    "int2": lambda: Linear(bits=2),
    "stochastic8": lambda: Linear(bits=8, rounding="stochastic"),
    "stochastic4": lambda: Linear(bits=4, rounding="stochastic"),
    "stochastic2": lambda: Linear(bits=2, rounding="stochastic"),
    "sign": SignMean,
    "binned": Binned,
    "octaves": Octaves,
    "octaves2": lambda: Octaves(bits=2),
    "one_bit": OneBit,
    "qsgd": Qsgd,
    "terngrad": TernGrad,
}


def by_name(values: Codec | str) -> Codec:
    """Return a codec from its word, or as it is.

    >>> by_name("int4")
    Linear(bits=4, rounding='nearest', seed=0)
    """
    if not isinstance(values, str):
        return values
    if values not in WORDS:
        raise ValueError(f"values must be one of {', '.join(WORDS)}, got {values!r}. For exact ones leave it out.")
    return WORDS[values]()

"""Methods that send every entry in a few bits: the quantisers that sparse methods are held against.

Each parameter is written with numbers of its own.
"""

from __future__ import annotations

from laconic.codecs import OneBit, Qsgd, SignMean, TernGrad
from laconic.coding import Codec
from laconic.compressors import Dense
from laconic.exchanges import GatherMean
from laconic.method import Method, Unit
from laconic.tuners import Constant


def qsgd(levels: int = 127, *, seed: int = 0) -> Method:
    """Send every entry as one of a few levels of its parameter's norm, by chance and unbiased: QSGD.

    Alistarh et al., NeurIPS 2017: levels * |g| / norm, rounded up or down such that the mean is right. Nothing is
    remembered. Levels of 1, 7 and 127 fill two, four and eight bits.
    """
    return _rounded("qsgd", Qsgd(levels=levels, seed=seed), "none")


def terngrad(deviations: float = 2.5, *, seed: int = 0) -> Method:
    """Send every entry as -s, 0 or s, by chance, with two bits: TernGrad.

    Wen et al., NeurIPS 2017: entries are cut at so many ``deviations``; s is the largest magnitude left, sent with
    probability |g| / s. Nothing is remembered, not even what was cut.
    """
    return _rounded("terngrad", TernGrad(deviations=deviations, seed=seed), "none")


def one_bit(*, memory: Unit = "gradient") -> Method:
    """Send one bit of every entry, which stands for the mean of its side of zero, and remember the rest: 1-bit SGD.

    Seide et al., Interspeech 2014, whose sides are those of a matrix column; here they are a parameter's.
    """
    return _rounded("one_bit", OneBit(), memory)


def ef_sign(*, memory: Unit = "update") -> Method:
    """Send the sign of every entry with the parameter's mean magnitude, and remember the rest: EF-signSGD.

    Karimireddy et al., ICML 2019: p = owed + rate * g; sent is sign(p) * |p|_1 / d; owed is what that leaves of p.
    """
    return _rounded("ef_sign", SignMean(), memory)


def _rounded(name: str, values: Codec, memory: Unit) -> Method:
    return Method(
        name=name,
        compressor=Dense(),
        exchange=GatherMean(values=values),
        tuner=Constant(),
        memory=memory,
        scope="layer",
    )

"""Peers: what a user could pick instead, one small file each, and methods of laconic beside them.

A peer is named by a word: one of ``SHIPPED`` (with a number behind a colon where it takes one), a method of laconic
with its settings, or the path of a Python file that defines ``PEER``.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

from laconic.lab.method_words import make, name_of
from laconic.lab.peers.alone import Alone
from laconic.lab.peers.ddp import Ddp
from laconic.lab.peers.ddp_fp16 import DdpFp16
from laconic.lab.peers.ddp_powersgd import DdpPowerSgd
from laconic.lab.peers.ours import Ours
from laconic.lab.peers.peer import Peer, Prepared
from laconic.lab.peers.post_local import PostLocal
from laconic.lab.peers.torchft_diloco import TorchftDiloco
from laconic.lab.peers.torchft_local import TorchftLocal
from laconic.methods import METHODS

__all__ = [
    "SHIPPED", "Alone", "Ddp", "DdpFp16", "DdpPowerSgd", "Ours", "Peer", "PostLocal", "Prepared", "TorchftDiloco",
    "TorchftLocal", "peer_of",
]  # fmt: skip

# By name; what stands behind a colon is handed over as a whole number, the default where nothing does.
_PLAIN: dict[str, Callable[[], Peer]] = {"alone": Alone, "ddp": Ddp, "ddp-fp16": DdpFp16}
_NUMBERED: dict[str, Callable[[int], Peer]] = {
    "powersgd-hook": lambda rank: DdpPowerSgd(rank=rank),
    "post-local": lambda period: PostLocal(period=period),
    "torchft-local": lambda period: TorchftLocal(period=period),
    "torchft-diloco": lambda period: TorchftDiloco(period=period),
}
_NUMBERS = {"powersgd-hook": 1, "post-local": 4, "torchft-local": 4, "torchft-diloco": 4}
SHIPPED = (*_PLAIN, *_NUMBERED)


def peer_of(word: str) -> Peer:
    """Return the peer that a word names.

    >>> peer_of("post-local:16").period
    16
    >>> peer_of("topk:density=0.001").name
    'topk:density=0.001'
    """
    name, colon, number = word.partition(":")
    if word in _PLAIN:
        return _PLAIN[word]()
    if name in _NUMBERED:
        if colon and not (number.isdecimal() and int(number)):
            raise ValueError(
                f"{name} takes a whole number of 1 or more, got {word!r}. Write {name}:{_NUMBERS[name]}."
            )
        return _NUMBERED[name](int(number) if colon else _NUMBERS[name])
    if word.endswith(".py"):
        return _of_file(Path(word))
    if name_of(word) in METHODS:
        return Ours(name=word, method=make(word))
    raise ValueError(
        f"no peer is called {word!r}. There are {', '.join(SHIPPED)}, the methods that laconic methods lists, and "
        f"paths of Python files that define PEER."
    )


def _of_file(path: Path) -> Peer:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path} to take a peer from. Give the path of one that defines PEER."
        )
    found = runpy.run_path(str(path)).get("PEER")
    wanted = ("name", "period", "missing", "prepare")
    lacking = [word for word in wanted if word not in dir(found)]
    if found is None or lacking:
        raise ValueError(
            f"{path} must define PEER, an object with {', '.join(wanted)}; it lacks {', '.join(lacking)}."
        )
    peer: Peer = found
    return peer

"""Other ways to write ascending positions down: what ours is measured against. Both need the extra ``bench``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
_NEEDS = {"zstd": "zstandard", "roaring": "pyroaring"}


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A way to write positions to bytes, and to read them."""

    name: str
    write: Callable[[Positions], bytes]
    read: Callable[[bytes], Any]


def rivals() -> list[Rival]:
    """Return those whose libraries are there."""
    return [make() for name, make in (("zstd", _zstd), ("roaring", _roaring)) if find_spec(_NEEDS[name])]


def missing() -> str:
    """Say what to install for those that are not, if any."""
    absent = [needs for needs in _NEEDS.values() if not find_spec(needs)]
    return f'not compared with {" and ".join(absent)}: pip install "laconic[bench]"' if absent else ""


def _zstd() -> Rival:
    """Gaps between positions as 32-bit numbers, compressed at zstd's usual level."""
    import zstandard

    into, out = zstandard.ZstdCompressor(), zstandard.ZstdDecompressor()

    def write(at: Positions) -> bytes:
        written: bytes = into.compress(np.diff(at, prepend=0).astype(np.uint32).tobytes())
        return written

    def read(raw: bytes) -> Positions:
        return np.cumsum(np.frombuffer(out.decompress(raw), np.uint32), dtype=np.int64)

    return Rival(name="zstd", write=write, read=read)


def _roaring() -> Rival:
    """A Roaring bitmap, run-optimised."""
    from pyroaring import BitMap

    def write(at: Positions) -> bytes:
        bitmap = BitMap(at.astype(np.uint32))
        bitmap.run_optimize()
        written: bytes = bitmap.serialize()
        return written

    def read(raw: bytes) -> Positions:
        return np.array(BitMap.deserialize(raw), np.int64)

    return Rival(name="roaring", write=write, read=read)

"""Memory in which one step too far shows: a closed page behind, a canary before."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_PAGE, _CANARY = mmap.PAGESIZE, 0xA5


class Guarded:
    """Memory that ends where a page begins that nobody may touch; a canary stands before what is in use."""

    def __init__(self, most: int) -> None:
        size = (-(-most // _PAGE) + 1) * _PAGE
        self._memory = mmap.mmap(-1, size + _PAGE)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if libc.mprotect(ctypes.c_void_p(address + size), ctypes.c_size_t(_PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect: no page can be closed here")
        self._bytes = np.frombuffer(self._memory, np.uint8, size)
        self._used = 0

    def take(self, size: int) -> Bytes:
        """Return the last so many bytes; all before them are canaries."""
        self._bytes[:], self._used = _CANARY, size
        return self._bytes[len(self._bytes) - size :]

    @property
    def whole(self) -> bool:
        """Whether all canaries are."""
        return bool((self._bytes[: len(self._bytes) - self._used] == _CANARY).all())

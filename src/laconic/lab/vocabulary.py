"""Text as numbers: one a character or one a word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Level = Literal["char", "word"]
END, UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Entries in sorted order; an entry's number is its place. Words that are not there count as ``<unk>``."""

    level: Level
    entries: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> NDArray[np.int64]:
        r"""Return the numbers of a text's characters, or of its words with ``<eos>`` for each line end.

        >>> Vocabulary.of_words("a b a\n").encode("b c\n").tolist()
        [3, 1, 0]
        >>> Vocabulary.of_characters(["cab"]).encode("abba").tolist()
        [0, 1, 1, 0]
        """
        return self._characters(text) if self.level == "char" else self._words(text)

    @staticmethod
    def of_characters(texts: Iterable[str]) -> Vocabulary:
        """Return the alphabet of all of the texts."""
        return Vocabulary(level="char", entries=tuple(sorted(set().union(*texts))))

    @staticmethod
    def of_words(train: str) -> Vocabulary:
        """Return the words of a training text, with ``<unk>`` where the text has none."""
        return Vocabulary(level="word", entries=tuple(sorted({*words_of(train), UNKNOWN})))

    def _characters(self, text: str) -> NDArray[np.int64]:
        alphabet, codes = code_points("".join(self.entries)), code_points(text)
        places = np.searchsorted(alphabet, codes)
        known = alphabet[np.minimum(places, len(alphabet) - 1)] == codes if len(alphabet) else codes < 0
        if not known.all():
            strange = chr(int(codes[~known][0]))
            raise ValueError(f"the alphabet has no {strange!r}. Make it from all of the text: of_characters.")
        return places.astype(np.int64)

    def _words(self, text: str) -> NDArray[np.int64]:
        index = {word: place for place, word in enumerate(self.entries)}
        unknown, words = index[UNKNOWN], words_of(text)
        return np.fromiter((index.get(word, unknown) for word in words), dtype=np.int64, count=len(words))


def words_of(text: str) -> list[str]:
    r"""Return what stands between white space, and ``<eos>`` for each line end.

    >>> words_of("to be\nor not\n")
    ['to', 'be', '<eos>', 'or', 'not', '<eos>']
    """
    return text.replace("\n", f" {END} ").split()


def code_points(text: str) -> NDArray[np.int64]:
    """Return the Unicode code points of a text; sorted as Python sorts characters."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)

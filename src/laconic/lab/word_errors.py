"""How much of what was said was misheard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Return the least number of words to put in, leave out or replace that turns one into the other.

    The edit distance of Levenshtein over words. Summed over utterances and divided by the number of words said
    it is the word error rate, which passes 1 where more is heard than said.

    >>> word_errors("one two three".split(), "one three four".split())
    2
    """
    code = {word: number for number, word in enumerate({*said, *heard})}
    heard_codes = np.array([code[word] for word in heard], dtype=np.int64)
    places = np.arange(len(heard) + 1)
    # costs[j]: the errors between the words said so far and the first j heard.
    costs = places.copy()
    for word in said:
        replaced = costs[:-1] + (heard_codes != code[word])
        best = np.concatenate([costs[:1] + 1, np.minimum(replaced, costs[1:] + 1)])
        # Words put in: the least over i <= j of best[i] + (j - i).
        costs = np.minimum.accumulate(best - places) + places
    return int(costs[-1])

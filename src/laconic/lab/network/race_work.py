"""The task of a race, made ready: its validation part is cut to a fixed size, so that evaluations stay short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from laconic.lab.data import kinds
from laconic.lab.data.store import load
from laconic.lab.data.text_files import load_folder_text
from laconic.lab.tasks import Lm, Vision
from laconic.lab.tasks.lm import LmWork
from laconic.lab.work import Place, Work

Racing = Lm | Vision


def bounded(task: Racing, place: Place, examples: int | None) -> Work:
    """Make a task ready; without a number of ``examples`` everything there is to validate on is scored.

    Examples are pictures of the test part, or tokens at the beginning of the validation text.
    """
    if examples is None:
        return task.prepare(place)
    if isinstance(task, Vision):
        return replace(task, test_examples=examples).prepare(place)
    folder = Path(task.data)
    # As the task has it: what is no name of a set is a folder.
    text = (
        load_folder_text(folder) if folder.is_dir() or len(folder.parts) > 1 else load(task.data, place.data_home)
    )
    if not isinstance(text, kinds.Text):
        # The task has the words for it.
        return task.prepare(place)
    return LmWork(task, replace(text, valid=first_tokens(text.valid, examples, words=task.tokens == "word")), place)


def first_tokens(text: str, number: int, *, words: bool) -> str:
    r"""Return the beginning of a text: so many characters, or lines until so many words are there.

    >>> first_tokens("no it was n't\nblack monday\nmore", 6, words=True)
    "no it was n't\nblack monday\n"
    >>> first_tokens("no it was n't", 5, words=False)
    'no it'
    """
    if not words:
        return text[:number]
    out, count = "", 0
    for line in text.splitlines(keepends=True):
        if count >= number:
            break
        # The end of a line is a word, too.
        out, count = out + line, count + len(line.split()) + 1
    return out

"""Text from files: the word language-model sets, and any folder of text."""

from __future__ import annotations

from pathlib import Path

from laconic.lab.data.kinds import Text
from laconic.lab.data.sources import View, on_disk

PARTS = ("train", "valid", "test")
# The names that a part goes by, each with the part's name in it.
_NAMES = {"ptb": ("ptb.{}.txt",), "wikitext-2": ("wiki.{}.tokens", "{}.txt")}
_ENDINGS = (".txt", ".md", ".rst")


def has_text(view: View, name: str) -> bool:
    """Whether a view has a text set's training part."""
    return any(view.has(pattern.format("train")) for pattern in _NAMES[name])


def read_text(view: View, name: str) -> Text:
    """Read a text set as it is, in UTF-8."""
    pattern = next(pattern for pattern in _NAMES[name] if view.has(pattern.format("train")))
    train, valid, test = (_decoded(view, pattern.format(part)) for part in PARTS)
    return Text(name=name, train=train, valid=valid, test=test)


def load_folder_text(path: Path) -> Text:
    """Read a folder of one's own.

    With ``train.txt``, ``valid.txt`` and ``test.txt`` in it, those are the parts. Otherwise all of its .txt, .md
    and .rst files are joined in the order of their paths, and the last tenth is for validation.
    """
    view = on_disk(Path(path))
    if all(view.has(f"{part}.txt") for part in PARTS):
        train, valid, test = (_decoded(view, f"{part}.txt") for part in PARTS)
        return Text(name=str(path), train=train, valid=valid, test=test)
    names = [name for name in view.names() if name.endswith(_ENDINGS)]
    text = "\n\n".join(_decoded(view, name) for name in names)
    if not text.strip():
        raise ValueError(f"{path} has no text: {len(names)} files end in .txt, .md or .rst. Put text there.")
    cut = len(text) * 9 // 10
    return Text(name=str(path), train=text[:cut], valid=text[cut:], test="")


def _decoded(view: View, name: str) -> str:
    try:
        return view.read(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{view.place(name)} is not text in UTF-8: {error}. Convert it first.") from error

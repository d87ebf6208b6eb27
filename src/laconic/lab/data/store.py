"""The form in which data is kept, one a kind, in ``HOME/NAME``:

| kind | files |
|---|---|
| text | train.txt, valid.txt, test.txt, in UTF-8 |
| pictures | train_images.npy (uint8, [number, height, width, channels]), train_labels.npy; test likewise |
| speech | train.npy (int16, one after the other), train_offsets.npy, train.json (words, speakers); test likewise |
| rows | train.npz (scipy's CSR), train_labels.npy; test likewise |

and ``about.json``: what it is, where it came from, its counts and digests, and what was checked.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.lab.data.catalogue import entry_of
from laconic.lab.data.content import UNITS, Dataset, Kind, Part
from laconic.lab.data.embedded import EMBEDDED
from laconic.lab.data.kinds import Pictures, Rows, SparseMatrix, Speech, Text, Utterance
from laconic.lab.data.needs import needs


@dataclass(frozen=True, kw_only=True)
class About:
    """What about.json says. ``checked`` has for each part what it was compared by: digest, count or nothing."""

    name: str
    kind: Kind
    source: str
    parts: dict[str, Part]
    checked: dict[str, str]
    notes: tuple[str, ...] = ()


def is_there(name: str, home: Path) -> bool:
    """Whether a set is kept in ``home``; a set comes there whole or not at all."""
    return (home / name / "about.json").is_file()


def size_of(name: str, home: Path) -> int:
    """Return the bytes that a set takes in ``home``."""
    return sum(path.stat().st_size for path in (home / name).glob("*") if path.is_file())


def write(data: Dataset, about: About, home: Path) -> None:
    """Put a set in ``home`` in place of what was there; until all of it is written nothing changes."""
    home.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{about.name}.", dir=home))
    target, old = home / about.name, made.with_name(f"{made.name}.old")
    try:
        # mkdtemp lets in nobody else; data may be shared.
        made.chmod(0o777 & ~_umask())
        _write_parts(data, made)
        (made / "about.json").write_text(json.dumps(asdict(about), indent=2) + "\n", encoding="utf-8")
        # A folder can be renamed only onto an empty one.
        if target.exists():
            os.rename(target, old)
        os.rename(made, target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        if old.exists() and not target.exists():
            os.rename(old, target)
        shutil.rmtree(made, ignore_errors=True)
        raise


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _write_parts(data: Dataset, folder: Path) -> None:
    if isinstance(data, Text):
        for part, text in (("train", data.train), ("valid", data.valid), ("test", data.test)):
            (folder / f"{part}.txt").write_bytes(text.encode("utf-8"))
    elif isinstance(data, Pictures):
        np.save(folder / "train_images.npy", data.train_images)
        np.save(folder / "train_labels.npy", data.train_labels)
        np.save(folder / "test_images.npy", data.test_images)
        np.save(folder / "test_labels.npy", data.test_labels)
        (folder / "pictures.json").write_text(json.dumps({"classes": data.classes}), encoding="utf-8")
    elif isinstance(data, Speech):
        _write_speech(folder, "train", data.train)
        _write_speech(folder, "test", data.test)
        speech = json.dumps({"rate": data.rate, "digits": data.digits})
        (folder / "speech.json").write_text(speech, encoding="utf-8")
    else:
        sparse = needs("scipy.sparse")
        sparse.save_npz(folder / "train.npz", data.train, compressed=False)
        sparse.save_npz(folder / "test.npz", data.test, compressed=False)
        np.save(folder / "train_labels.npy", data.train_labels)
        np.save(folder / "test_labels.npy", data.test_labels)


def _write_speech(folder: Path, part: str, said: Sequence[Utterance]) -> None:
    lengths = [len(one.samples) for one in said]
    joined = np.concatenate([one.samples for one in said]) if said else np.zeros(0, np.int16)
    np.save(folder / f"{part}.npy", joined)
    np.save(folder / f"{part}_offsets.npy", np.cumsum([0, *lengths]))
    listed = {"words": [one.words for one in said], "speakers": [one.speaker for one in said]}
    (folder / f"{part}.json").write_text(json.dumps(listed), encoding="utf-8")


def load(name: str, home: Path) -> Dataset:
    """Return a set: one that is made here, or one that ``laconic data`` has put in ``home``."""
    entry = entry_of(name)
    if name in EMBEDDED:
        return EMBEDDED[name]()
    if not is_there(name, home):
        fetch = f"Fetch it: laconic data get {name}; or import" if entry.files else "Import"
        raise FileNotFoundError(f"{name} is not in {home}. {fetch} a copy: laconic data import {name} DIR")
    readers: dict[Kind, Callable[[str, Path], Dataset]] = {
        "text": _text, "pictures": _pictures, "speech": _speech, "rows": _rows,
    }  # fmt: skip
    try:
        about = json.loads((home / name / "about.json").read_text(encoding="utf-8"))
        data = readers[entry.kind](name, home / name)
        wanted = {part: int(known["count"]) for part, known in about["parts"].items()}
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{home / name} is broken: {error}. {_again(name)}") from error
    found = _counts(data)
    if found != wanted:
        raise ValueError(
            f"{home / name} is broken: its about.json says {wanted} {UNITS[entry.kind]}, there are {found}. "
            f"{_again(name)}"
        )
    return data


def _again(name: str) -> str:
    return f"Get it or import it again: laconic data import {name} DIR"


def _counts(data: Dataset) -> dict[str, int]:
    """Return the counts of ``content.parts_of`` without the digests, which take time."""
    if isinstance(data, Text):
        return {"train": data.train.count("\n"), "valid": data.valid.count("\n"), "test": data.test.count("\n")}
    if isinstance(data, Speech):
        return {"train": len(data.train), "test": len(data.test)}
    return {"train": len(data.train_labels), "test": len(data.test_labels)}


def _text(name: str, folder: Path) -> Text:
    train, valid, test = ((folder / f"{part}.txt").read_bytes().decode() for part in ("train", "valid", "test"))
    return Text(name=name, train=train, valid=valid, test=test)


def _array(path: Path) -> NDArray[Any]:
    """Load an array; the error that numpy raises does not name the file."""
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (EOFError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    return found


def _matrix(path: Path) -> SparseMatrix:
    sparse = needs("scipy.sparse")
    # numpy leaves a file that is no archive open when it opens it itself.
    with path.open("rb") as file:
        try:
            return sparse.csr_matrix(sparse.load_npz(file))
        except (EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path.name}: {error}") from error


def _labelled(images: NDArray[Any], labels: NDArray[Any]) -> None:
    if images.shape[0] != len(labels):
        raise ValueError(f"{images.shape[0]} examples have {len(labels)} labels")


def _pictures(name: str, folder: Path) -> Pictures:
    data = Pictures(
        name=name,
        train_images=_array(folder / "train_images.npy"),
        train_labels=_array(folder / "train_labels.npy"),
        test_images=_array(folder / "test_images.npy"),
        test_labels=_array(folder / "test_labels.npy"),
        classes=int(json.loads((folder / "pictures.json").read_text(encoding="utf-8"))["classes"]),
    )
    _labelled(data.train_images, data.train_labels)
    _labelled(data.test_images, data.test_labels)
    return data


def _speech(name: str, folder: Path) -> Speech:
    known = json.loads((folder / "speech.json").read_text(encoding="utf-8"))
    train, test = (_utterances(folder, part) for part in ("train", "test"))
    return Speech(name=name, rate=int(known["rate"]), train=train, test=test, digits=bool(known["digits"]))


def _utterances(folder: Path, part: str) -> tuple[Utterance, ...]:
    joined, offsets = _array(folder / f"{part}.npy"), _array(folder / f"{part}_offsets.npy")
    listed = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    if offsets[-1] != len(joined):
        raise ValueError(f"{part}.npy has {len(joined)} samples, {offsets[-1]} expected")
    pieces = zip(offsets[:-1], offsets[1:], listed["words"], listed["speakers"], strict=True)
    return tuple(Utterance(samples=joined[a:b], words=words, speaker=who) for a, b, words, who in pieces)


def _rows(name: str, folder: Path) -> Rows:
    data = Rows(
        name=name,
        train=_matrix(folder / "train.npz"),
        train_labels=_array(folder / "train_labels.npy"),
        test=_matrix(folder / "test.npz"),
        test_labels=_array(folder / "test_labels.npy"),
    )
    _labelled(data.train, data.train_labels)
    _labelled(data.test, data.test_labels)
    return data

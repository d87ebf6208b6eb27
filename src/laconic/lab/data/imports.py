"""From files as they are given out to the form that is kept: find, read, check, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from laconic.lab.data import libsvm_files, picture_files, sound_files, text_files
from laconic.lab.data.catalogue import CATALOGUE, Entry, entry_of
from laconic.lab.data.content import UNITS, Dataset, Part, parts_of
from laconic.lab.data.kinds import Rows
from laconic.lab.data.sources import View, archives, in_archive, on_disk, roots, silent
from laconic.lab.data.store import About, write


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How a set is known by its files, how it is read, and what to say when nothing is found."""

    has: Callable[[View], bool]
    read: Callable[[View], Dataset]
    wants: str


def _text(name: str, wants: str) -> Reader:
    return Reader(
        has=lambda view: text_files.has_text(view, name),
        read=lambda view: text_files.read_text(view, name),
        wants=wants,
    )


def _rows(name: str, wants: str) -> Reader:
    columns = CATALOGUE[name].columns
    return Reader(
        has=lambda view: libsvm_files.has_rows(view, name),
        read=lambda view: libsvm_files.read_rows(view, name, columns),
        wants=wants,
    )


READERS: dict[str, Reader] = {
    "ptb": _text("ptb", "ptb.train.txt, ptb.valid.txt and ptb.test.txt"),
    "wikitext-2": _text("wikitext-2", "train.txt, valid.txt and test.txt, or wiki.train.tokens and so on"),
    "cifar10": Reader(
        has=picture_files.has_cifar10,
        read=picture_files.read_cifar10,
        wants="data_batch_1 to 5 and test_batch: pickles, .bin, or .webp mosaics with labels.npz",
    ),
    "fashion-mnist": Reader(
        has=picture_files.has_fashion_mnist,
        read=picture_files.read_fashion_mnist,
        wants="train-images-idx3-ubyte, train-labels-idx1-ubyte, and both of t10k",
    ),
    "fsdd": Reader(
        has=sound_files.has_fsdd, read=sound_files.read_fsdd, wants="recordings such as 7_jackson_32.wav"
    ),
    "an4": Reader(
        has=sound_files.has_an4,
        read=sound_files.read_an4,
        wants="etc/an4_train.fileids and .transcription, both of an4_test, and wav/ with .sph, .raw or .wav",
    ),
    "an4-mini": Reader(
        has=sound_files.has_an4_mini, read=sound_files.read_an4_mini, wants="train.jsonl, test.jsonl and WAV files"
    ),
    "a9a": _rows("a9a", "a9a and a9a.t"),
    "w8a": _rows("w8a", "w8a and w8a.t"),
    "rcv1": _rows("rcv1", "rcv1_train.binary and rcv1_test.binary"),
    "rcv1-small": _rows("rcv1-small", "rcv1_small.train and rcv1_small.test"),
    "agaricus": _rows("agaricus", "agaricus.txt.train and agaricus.txt.test"),
}


def find(name: str, folder: Path, tell: Callable[[str], None] = silent) -> View:
    """Return where a set's files begin: in a folder, in one below, or in an archive there."""
    reader, view = READERS[name], on_disk(folder, tell)
    for root in roots(view, name):
        if reader.has(root):
            return root
    unreadable: list[ValueError] = []
    for path in archives(view, name):
        try:
            inside = in_archive(view, path)
        except ValueError as error:
            unreadable.append(error)
            continue
        for root in roots(inside, name):
            if reader.has(root):
                return root
    if unreadable:
        raise unreadable[0]
    raise FileNotFoundError(
        f"{folder} has nothing of {name}, at its top, up to two folders down or in archives there. "
        f"Wanted: {reader.wants}; each plain, as .xz, .gz or .bz2, or in a .tar.gz or .tar.xz."
    )


def import_set(
    name: str,
    folder: Path,
    home: Path,
    *,
    unchecked: bool = False,
    tell: Callable[[str], None] = silent,
    source: str | None = None,
) -> About:
    """Read a set from a folder, check that it is the one known, and keep it in ``home``; what was there goes."""
    entry = entry_of(name)
    if entry.embedded:
        raise ValueError(f"{name} needs no import: {entry.about}")
    return keep(entry, READERS[name].read(find(name, folder, tell)), home,
                unchecked=unchecked, source=source or str(folder.resolve()))  # fmt: skip


def keep(entry: Entry, data: Dataset, home: Path, *, unchecked: bool, source: str) -> About:
    """Check what was read and write it."""
    found = parts_of(data)
    untested = isinstance(data, Rows) and not found["test"].count
    checked = _checked(entry, found, unchecked=unchecked, untested=untested)
    notes = []
    if unchecked and "nothing" in checked.values():
        notes.append("it differs from the set known and was taken unchecked")
    if untested and isinstance(data, Rows):
        data = libsvm_files.hold_out(data)
        notes.append("no test file: after the check every tenth row of the training file was held out as the test")
    about = About(
        name=entry.name, kind=entry.kind, source=source, parts=parts_of(data), checked=checked, notes=tuple(notes)
    )
    write(data, about, home)
    return about


def _checked(entry: Entry, found: dict[str, Part], *, unchecked: bool, untested: bool) -> dict[str, str]:
    """Return what each part was compared by: digest, count or nothing. One that differs is an error."""
    checked, wrong = {}, []
    for part, known in entry.parts.items():
        is_there = found[part]
        if untested and part == "test":
            checked[part] = "held out"
        elif is_there.count != known.count:
            wrong.append(f"{part}: expected {known.count:,} {UNITS[entry.kind]}, found {is_there.count:,}")
        elif known.digest not in (None, is_there.digest):
            wrong.append(f"{part}: {known.count:,} {UNITS[entry.kind]} as expected, but with other content")
        else:
            checked[part] = "digest" if known.digest else "count"
    if wrong and not unchecked:
        raise ValueError(
            f"this is not {entry.name} as it is known. {'; '.join(wrong)}. "
            f"To take it anyway write --unchecked: runs on it compare with no others'."
        )
    return {part: checked.get(part, "nothing") for part in entry.parts}

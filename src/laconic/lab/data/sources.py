"""Files as people have them: in a folder or one below, plain, compressed, or in a tar archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

_OPENERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda file: cast("IO[bytes]", gzip.GzipFile(fileobj=file)),
    ".bz2": bz2.BZ2File,
}
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
# What the readers of compressed files and archives raise when a file is cut short or is something else.
BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError)
# AN4 keeps its recordings four folders down; a home folder given by mistake is not walked to its end.
_DEEPEST = 6


def silent(_place: str) -> None:
    """Tell nobody what is being read."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The files below one folder, on disk or in an archive, by their paths from there.

    A file goes by its name without ``.xz``, ``.gz`` or ``.bz2`` and is read uncompressed.
    ``tell`` hears the name of each file that is opened.
    """

    where: str
    files: Mapping[str, Callable[[], IO[bytes]]]
    tell: Callable[[str], None] = silent

    def names(self) -> list[str]:
        """Return the names of the files, sorted, without the endings of compressed files."""
        return sorted({_plain(name) for name in self.files})

    def has(self, name: str) -> bool:
        """Whether a file is there, compressed or not."""
        return any(name + ending in self.files for ending in ("", *_OPENERS))

    def place(self, name: str) -> str:
        """Return where a file lies, for messages."""
        found = next((name + ending for ending in ("", *_OPENERS) if name + ending in self.files), name)
        return f"{self.where}/{found}"

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file; one that is missing is an error that says what else is there."""
        found = next((ending for ending in ("", *_OPENERS) if name + ending in self.files), None)
        if found is None:
            there = ", ".join(sorted(self.files)[:8]) or "nothing"
            raise ValueError(f"{self.where} lacks {name} (plain, or as .xz, .gz or .bz2). It has: {there}.")
        self.tell(self.place(name))
        with self.files[name + found]() as file:
            if not found:
                yield file
                return
            with _OPENERS[found](file) as uncompressed:
                yield uncompressed

    def read(self, name: str) -> bytes:
        """Return a file's content; one that is cut short or is not what its ending says is an error."""
        try:
            with self.open(name) as file:
                return file.read()
        except BROKEN as error:
            raise ValueError(broken(self.place(name), error)) from error

    def below(self, folder: str) -> View:
        """Return the view from a folder further down."""
        start = folder + "/"
        files = {path[len(start) :]: file for path, file in self.files.items() if path.startswith(start)}
        return View(where=f"{self.where}/{folder}", files=files, tell=self.tell)


def broken(place: str, error: Exception) -> str:
    """Say that a file cannot be read to its end, and what to do."""
    return f"{place} is broken: {error or type(error).__name__}. Fetch or copy the file again."


def _plain(name: str) -> str:
    stem, ending = os.path.splitext(name)
    return stem if ending in _OPENERS and not is_archive(name) else name


def is_archive(name: str) -> bool:
    """Whether a file's name is that of a tar archive."""
    return name.endswith(_ARCHIVES)


def on_disk(folder: Path, tell: Callable[[str], None] = silent) -> View:
    """Return the view of a folder on disk."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}. Give the folder that has the data set's files.")
    files: dict[str, Callable[[], IO[bytes]]] = {}
    for above, folders, names in os.walk(folder):
        relative = Path(above).relative_to(folder)
        if len(relative.parts) >= _DEEPEST:
            folders.clear()
        for name in names:
            files[(relative / name).as_posix()] = _opener(Path(above) / name)
    return View(where=str(folder), files=files, tell=tell)


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


def in_archive(view: View, name: str) -> View:
    """Return the view of an archive; it is read through once, into memory."""
    place, files = view.place(name), {}
    view.tell(place)
    try:
        with view.files[name]() as file, tarfile.open(fileobj=file) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    files[PurePosixPath(member.name).as_posix()] = _held(content.read())
    except BROKEN as error:
        raise ValueError(broken(place, error)) from error
    return View(where=place, files=files, tell=view.tell)


def _held(content: bytes) -> Callable[[], IO[bytes]]:
    return lambda: io.BytesIO(content)


def roots(view: View, alias: str) -> Iterator[View]:
    """Walk over where a data set may begin: here, one folder down, two; those with its name in theirs first."""
    folders = {str(above) for path in view.files for above in PurePosixPath(path).parents}
    depth = {folder: len(PurePosixPath(folder).parts) for folder in folders}
    yield view
    for folder in sorted(folders, key=lambda folder: (depth[folder], not alike(folder, alias), folder)):
        if 1 <= depth[folder] <= 2:
            yield view.below(folder)


def archives(view: View, alias: str) -> list[str]:
    """Return the archives here or up to two folders down, those with the data set's name in theirs first."""
    found = [path for path in view.files if is_archive(path) and len(PurePosixPath(path).parts) <= 3]
    return sorted(found, key=lambda path: (not alike(path, alias), path))


def alike(path: str, alias: str) -> bool:
    """Whether a path has a data set's name in it, with or without hyphens.

    >>> alike("downloads/cifar-10-python.tar.gz", "cifar10")
    True
    """
    return alias.replace("-", "") in path.lower().replace("-", "").replace("_", "")

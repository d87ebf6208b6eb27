"""Downloads from the sets' public homes: they go on where they stopped, and are checked."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from laconic.lab.data.catalogue import Download, Entry, entry_of
from laconic.lab.data.imports import READERS, find, keep
from laconic.lab.data.sources import silent
from laconic.lab.data.store import About

# The file's name, the bytes that are here, and how many there will be where the server says so.
Progress = Callable[[str, int, int | None], None]
# What opens a request: urllib's urlopen or a stand-in.
Opener = Callable[[Request], Any]
_ATTEMPTS = 4
_PIECE = 1 << 18
_TIMEOUT_SECONDS = 30
# The server is overloaded, or has no part of the file to give (416): worth another attempt.
_PASSING = (408, 416, 425, 429, 500, 502, 503, 504)


def _unheard(_name: str, _done: int, _total: int | None) -> None:
    """Tell nobody how far it is."""


def _open(request: Request) -> Any:
    return urlopen(request, timeout=_TIMEOUT_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Line:
    """How files are fetched: what opens a request, who hears of progress, how to wait between attempts."""

    opener: Opener = _open
    progress: Progress = _unheard
    sleep: Callable[[float], None] = time.sleep


def get(
    name: str,
    home: Path,
    *,
    unchecked: bool = False,
    line: Line | None = None,
    tell: Callable[[str], None] = silent,
) -> About:
    """Fetch a set from its public home, check that it is the one known, and keep it in ``home``.

    What was fetched stays in ``home/.NAME.fetch`` until the set is kept, so that another attempt goes on.
    """
    entry = entry_of(name)
    if entry.embedded:
        raise ValueError(f"{name} needs no download: {entry.about}")
    if not entry.files:
        raise ValueError(f"no public home of {name} is known here. Import a copy: laconic data import {name} DIR")
    folder = home / f".{name}.fetch"
    differs = folder / "differs"
    if differs.exists() and not unchecked:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for download in entry.files:
        _fetched(download, folder, entry, line or Line())
    try:
        data = READERS[name].read(find(name, folder, tell))
    except (ValueError, FileNotFoundError):
        # What cannot be read would be found again, and not be fetched again.
        shutil.rmtree(folder)
        raise
    source = ", ".join(download.url for download in entry.files)
    try:
        about = keep(entry, data, home, unchecked=unchecked, source=source)
    except ValueError:
        # Taken unchecked it need not be fetched again; without that it must be, or it would differ for ever.
        differs.touch()
        raise
    shutil.rmtree(folder)
    return about


def _fetched(download: Download, folder: Path, entry: Entry, line: Line) -> None:
    """Have one file in the folder, whole and with its checksum where one is known."""
    target = folder / download.name
    if target.exists() and (download.md5 is None or _md5(target) == download.md5):
        return
    target.unlink(missing_ok=True)
    part = target.with_name(f"{target.name}.part")
    why = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            line.sleep(2.0**attempt)
        failure = _attempt(download, part, line)
        if failure is None:
            part.rename(target)
            return
        why = failure.why
        if failure.final:
            break
    raise ConnectionError(
        f"could not fetch {download.url}: {why}. Try again later, or fetch {entry.name} by other means and "
        f"import it: laconic data import {entry.name} DIR"
    )


@dataclass(frozen=True, kw_only=True)
class _Failure:
    why: str
    final: bool = False


def _attempt(download: Download, part: Path, line: Line) -> _Failure | None:
    """Try to have the whole file as ``part``; return what went wrong."""
    begun = part.exists()
    try:
        _continue(download, part, line)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            part.unlink(missing_ok=True)
        return _Failure(why=f"it answered {error.code} {error.reason}", final=error.code not in _PASSING)
    except (OSError, http.client.HTTPException) as error:
        return _Failure(why=str(error) or type(error).__name__)
    found = _md5(part)
    if download.md5 in (None, found):
        return None
    part.unlink()
    # A part that was begun may be of another version of the file: from the beginning it may be right.
    return _Failure(why=f"its MD5 is {found}, expected {download.md5}", final=not begun)


def _continue(download: Download, part: Path, line: Line) -> None:
    """Fetch what is missing of a file; a server that knows no ranges sends all of it again."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(download.url, headers={"User-Agent": "laconic", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with line.opener(request) as answer:
        goes_on = answer.status == 206 and _begins_at(answer.headers.get("Content-Range"), have)
        if answer.status == 206 and not goes_on:
            part.unlink()
            raise ConnectionError("the server sent another piece than was asked for")
        length = answer.headers.get("Content-Length")
        done = have if goes_on else 0
        total = done + int(length) if length is not None else None
        with part.open("ab" if goes_on else "wb") as file:
            line.progress(download.name, done, total)
            while piece := answer.read(_PIECE):
                file.write(piece)
                done += len(piece)
                line.progress(download.name, done, total)
    if total is not None and done != total:
        raise ConnectionError(f"the connection was cut after {done:,} of {total:,} bytes")


def _begins_at(content_range: str | None, start: int) -> bool:
    return content_range is not None and content_range.strip().startswith(f"bytes {start}-")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

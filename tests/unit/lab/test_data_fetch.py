from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from laconic.lab.data.catalogue import CATALOGUE, Download, Known
from laconic.lab.data.content import parts_of
from laconic.lab.data.fetch import Line, get
from laconic.lab.data.kinds import Text
from laconic.lab.data.store import is_there, load

PTB = {"train": "a b c\n" * 60_000, "valid": "d\n", "test": "e\n"}
TRAIN = "ptb.train.txt"


@dataclass
class Home:
    """A server with the three files, and how it behaves."""

    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers for the training file are cut."""
    errors: list[int] = field(default_factory=list)
    """Codes of the next answers for the training file."""
    files: dict[str, bytes] = field(
        default_factory=lambda: {f"ptb.{part}.txt": text.encode() for part, text in PTB.items()}
    )
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    heard: list[tuple[str, int, int | None]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name, wanted = handler.path.strip("/"), handler.headers.get("Range")
        self.asked.append((name, wanted))
        content = self.files[name]
        if name == TRAIN and self.errors:
            handler.send_error(self.errors.pop(0))
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        stop = start + self.cuts.pop(0) if name == TRAIN and self.cuts else len(content)
        handler.wfile.write(content[start:stop])

    @property
    def line(self) -> Line:
        # Straight there, whatever proxy the environment names.
        direct = build_opener(ProxyHandler({}))

        def opener(request: Request) -> Any:
            return direct.open(request, timeout=10)

        return Line(opener=opener, progress=lambda *said: self.heard.append(said), sleep=self.waits.append)

    @property
    def train_asked(self) -> list[str | None]:
        return [wanted for name, wanted in self.asked if name == TRAIN]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    served = Home()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    files = tuple(
        Download(url=f"{url}/{name}", md5=hashlib.md5(content).hexdigest())
        for name, content in served.files.items()
    )
    known = parts_of(Text(name="ptb", **PTB))
    parts = {part: Known(count=one.count, digest=one.digest) for part, one in known.items()}
    monkeypatch.setitem(CATALOGUE, "ptb", replace(CATALOGUE["ptb"], files=files, parts=parts))
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def without_md5(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CATALOGUE["ptb"]
    files = tuple(replace(file, md5=None) for file in entry.files)
    monkeypatch.setitem(CATALOGUE, "ptb", replace(entry, files=files))


def test_a_set_is_fetched_checked_and_kept_and_nothing_else(home: Home, tmp_path: Path) -> None:
    about = get("ptb", tmp_path, line=home.line)
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)
    assert about.checked == {"train": "digest", "valid": "digest", "test": "digest"}
    assert about.source.count("http://127.0.0.1") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["ptb"]
    size = len(PTB["train"])
    said = [done for name, done, total in home.heard if name == TRAIN and total == size]
    assert said[0] == 0
    assert said == sorted(said)
    assert said[-1] == size
    assert home.waits == []


def test_a_cut_connection_goes_on_where_it_stopped(home: Home, tmp_path: Path) -> None:
    home.cuts = [100_000, 50_000]
    get("ptb", tmp_path, line=home.line)
    assert home.train_asked == [None, "bytes=100000-", "bytes=150000-"]
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_another_run_goes_on_where_the_last_one_gave_up(home: Home, tmp_path: Path) -> None:
    home.cuts = [10_000] * 4
    with pytest.raises(ConnectionError, match=r"cut after 40,000 of 360,000 bytes\. .*laconic data import ptb DIR"):
        get("ptb", tmp_path, line=home.line)
    assert not is_there("ptb", tmp_path)
    assert home.waits == [2.0, 4.0, 8.0]
    get("ptb", tmp_path, line=home.line)
    assert home.train_asked[-1] == "bytes=40000-"
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_a_server_without_ranges_sends_all_of_it_again(home: Home, tmp_path: Path) -> None:
    home.cuts, home.ranges = [100_000], False
    get("ptb", tmp_path, line=home.line)
    assert home.train_asked == [None, "bytes=100000-"]
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_a_part_of_another_version_is_thrown_away(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".ptb.fetch").mkdir()
    (tmp_path / ".ptb.fetch" / f"{TRAIN}.part").write_bytes(b"x" * 1000)
    get("ptb", tmp_path, line=home.line)
    assert home.train_asked == ["bytes=1000-", None]
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_a_part_that_is_as_long_as_the_file_is_begun_again(home: Home, tmp_path: Path) -> None:
    (tmp_path / ".ptb.fetch").mkdir()
    (tmp_path / ".ptb.fetch" / f"{TRAIN}.part").write_bytes(b"x" * len(PTB["train"]))
    get("ptb", tmp_path, line=home.line)
    assert home.train_asked == ["bytes=360000-", None]
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_a_wrong_checksum_is_refused_with_both(home: Home, tmp_path: Path) -> None:
    right, wrong = (hashlib.md5(content).hexdigest() for content in (home.files[TRAIN], b"other"))
    home.files[TRAIN] = b"other"
    with pytest.raises(ConnectionError, match=f"its MD5 is {wrong}, expected {right}"):
        get("ptb", tmp_path, line=home.line)
    assert home.train_asked == [None]
    assert not is_there("ptb", tmp_path)


def test_busy_servers_are_asked_again_and_missing_files_are_not(home: Home, tmp_path: Path) -> None:
    home.errors = [503, 429]
    get("ptb", tmp_path, line=home.line)
    assert home.waits == [2.0, 4.0]
    home.errors, home.asked = [404], []
    with pytest.raises(ConnectionError, match=r"ptb\.train\.txt: it answered 404 Not Found.*laconic data import"):
        get("ptb", tmp_path, line=home.line)
    assert home.train_asked == [None]
    # What was there before is still there.
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_other_content_is_refused_and_taken_unchecked_without_fetching_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_md5(monkeypatch)
    home.files[TRAIN] = b"other\n"
    with pytest.raises(ValueError, match=r"expected 60,000 lines, found 1\..*--unchecked"):
        get("ptb", tmp_path, line=home.line)
    asked = len(home.asked)
    about = get("ptb", tmp_path, unchecked=True, line=home.line)
    assert len(home.asked) == asked
    assert about.checked["train"] == "nothing"
    assert load("ptb", tmp_path) == Text(name="ptb", **(PTB | {"train": "other\n"}))


def test_other_content_is_fetched_again_when_it_is_to_be_checked(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_md5(monkeypatch)
    right, home.files[TRAIN] = home.files[TRAIN], b"other\n"
    with pytest.raises(ValueError, match="as it is known"):
        get("ptb", tmp_path, line=home.line)
    home.files[TRAIN] = right
    get("ptb", tmp_path, line=home.line)
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_files_that_are_whole_are_not_fetched_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_md5(monkeypatch)
    entry = CATALOGUE["ptb"]
    monkeypatch.setitem(CATALOGUE, "ptb", replace(entry, files=entry.files[::-1]))
    home.errors = [404]
    with pytest.raises(ConnectionError, match="404"):
        get("ptb", tmp_path, line=home.line)
    get("ptb", tmp_path, line=home.line)
    assert [name for name, _ in home.asked] == ["ptb.test.txt", "ptb.valid.txt", TRAIN, TRAIN]


def test_what_cannot_be_read_is_fetched_again_next_time(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_md5(monkeypatch)
    right, home.files[TRAIN] = home.files[TRAIN], b"\xff\xff"
    with pytest.raises(ValueError, match="not text in UTF-8"):
        get("ptb", tmp_path, unchecked=True, line=home.line)
    home.files[TRAIN] = right
    get("ptb", tmp_path, unchecked=True, line=home.line)
    assert load("ptb", tmp_path) == Text(name="ptb", **PTB)


def test_a_network_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    def opener(_request: Request) -> Any:
        raise OSError("Network is unreachable")

    with pytest.raises(
        ConnectionError, match=r"could not fetch https://.*Network is unreachable\. Try again later"
    ):
        get("ptb", tmp_path, line=Line(opener=opener, sleep=lambda _seconds: None))


def test_sets_without_a_public_home_or_need_of_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no public home of agaricus is known here\. Import a copy"):
        get("agaricus", tmp_path)
    with pytest.raises(ValueError, match="digits needs no download"):
        get("digits", tmp_path)
    assert list(tmp_path.iterdir()) == []

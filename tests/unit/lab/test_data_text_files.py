from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from laconic.lab.data.imports import READERS, find
from laconic.lab.data.kinds import Text
from laconic.lab.data.text_files import load_folder_text

PARTS = {"train": " the <unk> of N \n in  naïve order \n", "valid": " a \n", "test": " b \r\n c \n"}


def read(name: str, folder: Path) -> Text:
    data = READERS[name].read(find(name, folder))
    assert isinstance(data, Text)
    return data


@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
@pytest.mark.parametrize(
    ("ending", "packed"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress), (".bz2", bz2.compress)]
)
def test_text_is_kept_byte_for_byte_however_it_is_packed(
    tmp_path: Path, name: str, ending: str, packed: Callable[[bytes], bytes]
) -> None:
    pattern = {"ptb": "ptb.{}.txt", "wikitext-2": "wiki.{}.tokens"}[name]
    for part, text in PARTS.items():
        (tmp_path / (pattern.format(part) + ending)).write_bytes(packed(text.encode()))
    assert read(name, tmp_path) == Text(name=name, **PARTS)


def test_wikitext_goes_by_two_sets_of_names(tmp_path: Path) -> None:
    for part, text in PARTS.items():
        (tmp_path / f"{part}.txt").write_bytes(text.encode())
    assert read("wikitext-2", tmp_path) == Text(name="wikitext-2", **PARTS)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "ptb.train.txt").write_text("a\n")
    with pytest.raises(ValueError, match=r"lacks ptb\.valid\.txt .*It has: ptb\.train\.txt"):
        read("ptb", tmp_path)


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".gz", gzip.compress(b"a line\n" * 1000, mtime=0)[:-20]),
        (".xz", lzma.compress(b"a line\n" * 1000)[:-20]),
        (".bz2", bz2.compress(b"a line\n" * 1000)[:-20]),
        (".gz", b"this was never gzip"),
        (".xz", b"this was never xz"),
        (".bz2", b"this was never bz2"),
    ],
)
def test_a_file_cut_short_or_of_another_kind_is_named(tmp_path: Path, ending: str, content: bytes) -> None:
    (tmp_path / f"ptb.train.txt{ending}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"ptb\.train\.txt\{ending} is broken: .+ Fetch or copy"):
        read("ptb", tmp_path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ptb.train.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(ValueError, match=r"ptb\.train\.txt is not text in UTF-8"):
        read("ptb", tmp_path)


def test_a_folder_of_text_is_joined_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "last.rst").write_text("third")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "a2.md").write_text("second")
    (tmp_path / "code.py").write_text("not text")
    found, whole = load_folder_text(tmp_path), "first\n\nsecond\n\nthird"
    assert found.train + found.valid == whole
    assert len(found.train) == len(whole) * 9 // 10
    assert found.test == ""


def test_a_folder_with_parts_has_those_and_no_others(tmp_path: Path) -> None:
    for part, text in PARTS.items():
        (tmp_path / f"{part}.txt").write_bytes(text.encode())
    (tmp_path / "notes.txt").write_text("not in it")
    assert load_folder_text(tmp_path) == Text(name=str(tmp_path), **PARTS)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no text: 0 files"):
        load_folder_text(tmp_path)
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(ValueError, match="has no text: 1 files"):
        load_folder_text(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_folder_text(tmp_path / "nowhere")

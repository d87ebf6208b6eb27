from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from laconic.lab.data.catalogue import CATALOGUE, Known
from laconic.lab.data.content import parts_of
from laconic.lab.data.imports import READERS, find, import_set
from laconic.lab.data.kinds import Rows, Text
from laconic.lab.data.store import is_there, load

SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
PTB = {"train": "a b\nc\n", "valid": "d\n", "test": "e\n"}


@pytest.fixture
def ptb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a small text that the catalogue takes for PTB."""
    known = {
        part: Known(count=found.count, digest=found.digest)
        for part, found in parts_of(Text(name="ptb", **PTB)).items()
    }
    monkeypatch.setitem(CATALOGUE, "ptb", replace(CATALOGUE["ptb"], parts=known))
    folder = tmp_path / "ptb"
    folder.mkdir()
    for part, text in PTB.items():
        (folder / f"ptb.{part}.txt").write_text(text)
    return folder


def test_every_set_that_is_not_built_in_has_a_reader() -> None:
    assert set(READERS) == {name for name, entry in CATALOGUE.items() if not entry.embedded}


@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_set_is_imported_from_its_folder_or_from_those_above(ptb: Path, tmp_path: Path, up: int) -> None:
    deep = tmp_path / "deep" / "down"
    deep.mkdir(parents=True)
    shutil.move(ptb, deep / "sets")
    (tmp_path / "deep" / "unrelated.tar.gz").write_bytes(b"not opened, since the files were found")
    about = import_set("ptb", [deep / "sets", deep, deep.parent][up], tmp_path / "home")
    assert about.checked == {"train": "digest", "valid": "digest", "test": "digest"}
    assert load("ptb", tmp_path / "home") == Text(name="ptb", **PTB)
    kept = json.loads((tmp_path / "home" / "ptb" / "about.json").read_text())
    assert kept["source"].endswith(("sets", "down", "deep"))
    assert kept["notes"] == []


def test_no_member_of_an_archive_is_written_where_its_name_leads(ptb: Path, tmp_path: Path) -> None:
    """Names that climb, that begin at the root, and links that lead out: nothing is unpacked."""
    (tmp_path / "from").mkdir()
    outside = tmp_path / "outside.txt"
    with tarfile.open(tmp_path / "from" / "ptb.tar", "w") as archive:
        archive.add(ptb, arcname="data")
        for name in ("../../outside.txt", str(outside), "data/../../../outside.txt"):
            archive.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo("data/ptb.link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
    before = set(tmp_path.rglob("*"))
    import_set("ptb", tmp_path / "from", tmp_path / "home")
    new = set(tmp_path.rglob("*")) - before
    assert new
    assert all(path.is_relative_to(tmp_path / "home") and not path.is_symlink() for path in new)
    assert load("ptb", tmp_path / "home") == Text(name="ptb", **PTB)


@pytest.mark.parametrize(("ending", "form"), [(".tar.gz", "gz"), (".tgz", "gz"), (".tar.xz", "xz"), (".tar", "")])
def test_a_set_is_imported_from_an_archive(ptb: Path, tmp_path: Path, ending: str, form: str) -> None:
    (tmp_path / "from").mkdir()
    with tarfile.open(tmp_path / "from" / f"anything{ending}", f"w:{form}") as archive:
        archive.add(ptb, arcname="./simple-examples/data")
    import_set("ptb", tmp_path / "from", tmp_path / "home")
    assert load("ptb", tmp_path / "home") == Text(name="ptb", **PTB)


def test_an_archive_cut_short_is_named(ptb: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (ptb / "noise").write_bytes(np.random.default_rng(0).bytes(100_000))
    with tarfile.open(tmp_path / "from" / "ptb.tgz", "w:gz") as archive:
        archive.add(ptb, arcname="data")
    whole = (tmp_path / "from" / "ptb.tgz").read_bytes()
    (tmp_path / "from" / "ptb.tgz").write_bytes(whole[:50_000])
    with pytest.raises(ValueError, match=r"ptb\.tgz is broken"):
        import_set("ptb", tmp_path / "from", tmp_path / "home")
    assert not is_there("ptb", tmp_path / "home")


def test_another_content_is_refused_with_what_was_expected(ptb: Path, tmp_path: Path) -> None:
    (ptb / "ptb.train.txt").write_text("a b\nC\n")
    (ptb / "ptb.test.txt").write_text("e\nf\n")
    wanted = "train: 2 lines as expected, but with other content; test: expected 1 lines, found 2.*--unchecked"
    with pytest.raises(ValueError, match=wanted):
        import_set("ptb", ptb, tmp_path / "home")
    assert not is_there("ptb", tmp_path / "home")


def test_unchecked_takes_it_and_says_so(ptb: Path, tmp_path: Path) -> None:
    (ptb / "ptb.test.txt").write_text("e\nf\n")
    about = import_set("ptb", ptb, tmp_path / "home", unchecked=True)
    assert about.checked == {"train": "digest", "valid": "digest", "test": "nothing"}
    assert "unchecked" in json.loads((tmp_path / "home" / "ptb" / "about.json").read_text())["notes"][0]
    assert load("ptb", tmp_path / "home") == Text(name="ptb", **(PTB | {"test": "e\nf\n"}))


def test_nothing_found_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"has nothing of fsdd.*Wanted: recordings such as 7_jackson_32\.wav"
    ):
        find("fsdd", tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        find("fsdd", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there is no data set 'imagenet'"):
        import_set("imagenet", tmp_path, tmp_path / "home")
    with pytest.raises(ValueError, match="digits needs no import"):
        import_set("digits", tmp_path, tmp_path / "home")


def test_rows_without_a_test_file_are_checked_and_then_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w8a").write_bytes(b"".join(b"%d %d:1\n" % (i % 2, i + 1) for i in range(20)))
    small = replace(CATALOGUE["w8a"], parts={"train": Known(count=20), "test": Known(count=7)})
    monkeypatch.setitem(CATALOGUE, "w8a", small)
    about = import_set("w8a", tmp_path, tmp_path / "home")
    assert about.checked == {"train": "count", "test": "held out"}
    assert "every tenth row" in about.notes[0]
    data = load("w8a", tmp_path / "home")
    assert isinstance(data, Rows)
    assert (data.train.shape, data.test.shape) == ((18, 300), (2, 300))


@pytest.mark.skipif(not SHARED.exists(), reason="the real data sets are not on this machine")
@pytest.mark.parametrize("name", ["ptb", "fashion-mnist", "an4-mini", "w8a", "rcv1-small"])
def test_real_sets_have_the_digests_of_the_catalogue(tmp_path: Path, name: str) -> None:
    about = import_set(name, SHARED, tmp_path)
    assert about.checked["train"] == "digest"
    assert set(about.checked.values()) <= {"digest", "held out"}
    assert parts_of(load(name, tmp_path)) == about.parts

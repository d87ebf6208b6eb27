from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laconic.cli import main
from laconic.lab.data.catalogue import CATALOGUE, Known
from laconic.lab.data.content import parts_of
from laconic.lab.data.home import default_home
from laconic.lab.data.kinds import Text
from laconic.lab.data.store import is_there, load

PTB = {"train": "a b\nc\n", "valid": "d\n", "test": "e\n"}


@pytest.fixture
def ptb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small text that the catalogue takes for PTB; of its test it knows the count only."""
    known = {
        part: Known(count=found.count, digest=None if part == "test" else found.digest)
        for part, found in parts_of(Text(name="ptb", **PTB)).items()
    }
    monkeypatch.setitem(CATALOGUE, "ptb", replace(CATALOGUE["ptb"], parts=known))
    folder = tmp_path / "some [where]"
    folder.mkdir()
    for part, text in PTB.items():
        (folder / f"ptb.{part}.txt").write_text(text)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    main(["data", *map(str, words)])
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    found = json.loads(printed(capsys, *words, "--json"))
    assert isinstance(found, dict)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["data", *map(str, words)])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


def test_the_list_has_every_set_and_says_which_are_there(
    ptb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    before = parsed(capsys, "list", "--data-home", home)
    assert [one["name"] for one in before["sets"]] == list(CATALOGUE)
    assert {one["name"] for one in before["sets"] if one["there"]} == {
        name for name, entry in CATALOGUE.items() if entry.embedded
    }
    printed(capsys, "import", "ptb", ptb, "--data-home", home)
    after = {one["name"]: one for one in parsed(capsys, "list", "--data-home", home)["sets"]}
    assert after["ptb"]["there"]
    assert after["ptb"]["bytes"] > 10
    assert after["ptb"]["terms"].startswith("LDC")
    table = printed(capsys, "list", "--data-home", home)
    assert all(name in table for name in CATALOGUE)
    assert "built in" in table


def test_import_keeps_the_set_and_shows_checks_terms_and_citation(
    ptb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = printed(capsys, "import", "ptb", ptb, "--data-home", tmp_path / "home [1]")
    assert load("ptb", tmp_path / "home [1]") == Text(name="ptb", **PTB)
    assert f"ptb is in {tmp_path / 'home [1]' / 'ptb'}" in said
    assert "train: 2 lines (content checked)" in said
    assert "test: 1 lines (number checked, no digest is known)" in said
    assert "Terms: LDC licence" in said
    assert "Cite: Marcus" in said


def test_import_prints_one_object_for_programs(
    ptb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = parsed(capsys, "import", "ptb", ptb, "--data-home", tmp_path / "home")
    assert found["checked"] == {"train": "digest", "valid": "digest", "test": "count"}
    assert found["parts"]["train"]["count"] == 2
    assert found["source"] == str(ptb)
    assert found["terms"] == CATALOGUE["ptb"].terms


def test_other_content_is_refused_in_one_line_and_taken_unchecked(
    ptb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ptb / "ptb.train.txt").write_text("other\n")
    said = refused(capsys, "import", "ptb", ptb, "--data-home", tmp_path / "home")
    assert "train: expected 2 lines, found 1" in said
    assert not is_there("ptb", tmp_path / "home")
    said = printed(capsys, "import", "ptb", ptb, "--data-home", tmp_path / "home", "--unchecked")
    assert "train: 1 lines (not checked)" in said
    assert "Note: it differs" in said


def test_wrong_words_end_with_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no folder" in refused(capsys, "import", "ptb", tmp_path / "nowhere", "--data-home", tmp_path)
    assert "no public home of agaricus" in refused(capsys, "get", "agaricus", "--data-home", tmp_path)
    said = refused(capsys, "get", "imagenet", "--data-home", tmp_path)
    assert "imagenet" in said
    assert "wikitext-2" in said


def test_a_home_that_cannot_be_written_ends_in_one_line(
    ptb: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "file" in refused(capsys, "import", "ptb", ptb, "--data-home", tmp_path / "file")


def test_built_in_sets_need_no_fetching(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "digits is built in: nothing to fetch" in printed(capsys, "get", "digits", "--data-home", tmp_path)
    assert parsed(capsys, "get", "digits", "--data-home", tmp_path)["built_in"]


def test_the_home_is_laconic_data_then_xdg_then_the_users_own() -> None:
    assert default_home({"LACONIC_DATA": "/a", "XDG_DATA_HOME": "/b"}) == Path("/a")
    assert default_home({"LACONIC_DATA": "", "XDG_DATA_HOME": "/b"}) == Path("/b/laconic")
    assert default_home({}) == Path.home() / ".local" / "share" / "laconic"

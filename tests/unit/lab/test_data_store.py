from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from laconic.lab.data import store
from laconic.lab.data.catalogue import CATALOGUE
from laconic.lab.data.content import Dataset, kind_of, parts_of
from laconic.lab.data.kinds import Pictures, Rows, Speech, Text, Utterance
from laconic.lab.data.store import About, is_there, load, size_of, write


def text() -> Text:
    return Text(name="ptb", train=" naïve \r\n b \n", valid="c\n", test="")


def pictures() -> Pictures:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 2), dtype=np.uint8)
    labels = np.array([0, 9, 3, 3, 1])
    return Pictures(
        name="cifar10", train_images=images, train_labels=labels, test_images=images[:2], test_labels=labels[:2],
        classes=10,
    )  # fmt: skip


def speech() -> Speech:
    one = Utterance(samples=np.array([1, -2, 32767], np.int16), words="three", speaker="theo")
    two = Utterance(samples=np.array([-32768], np.int16), words="o'neil é", speaker="anna")
    return Speech(name="fsdd", rate=8000, train=(one, two), test=(), digits=True)


def rows() -> Rows:
    train = sparse.random(6, 123, density=0.2, format="csr", dtype=np.float32, random_state=0)
    labels = np.arange(6) % 2
    return Rows(name="a9a", train=train, train_labels=labels, test=train[:2], test_labels=labels[:2])


def kept(data: Dataset, home: Path) -> About:
    about = About(name=data.name, kind=kind_of(data), source="here", parts=parts_of(data), checked={})
    write(data, about, home)
    return about


MADE = (text, pictures, speech, rows)


@pytest.mark.parametrize("make", MADE)
def test_what_is_written_is_loaded_with_the_same_digests(tmp_path: Path, make: type) -> None:
    data = make()
    kept(data, tmp_path / "home")
    found = load(data.name, tmp_path / "home")
    assert type(found) is type(data)
    assert parts_of(found) == parts_of(data)
    if isinstance(data, Pictures):
        assert found.classes == data.classes
    if isinstance(data, Speech):
        assert (found.rate, found.digits) == (data.rate, data.digits)


def test_about_json_says_what_where_from_and_how_much(tmp_path: Path) -> None:
    kept(text(), tmp_path)
    about = json.loads((tmp_path / "ptb" / "about.json").read_text())
    assert about["name"] == "ptb"
    assert about["kind"] == "text"
    assert about["source"] == "here"
    assert about["parts"]["train"]["count"] == 2
    assert len(about["parts"]["valid"]["digest"]) == 64


def test_a_set_takes_the_place_of_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    kept(text(), tmp_path)
    kept(replace(text(), valid="d\n"), tmp_path)
    found = load("ptb", tmp_path)
    assert isinstance(found, Text)
    assert found.valid == "d\n"
    assert [path.name for path in tmp_path.iterdir()] == ["ptb"]
    assert size_of("ptb", tmp_path) > len("d\n")


def test_a_write_that_fails_leaves_the_set_before_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(text(), tmp_path)
    real, renames = store.os.rename, []

    def rename(one: Path, other: Path) -> None:
        renames.append(other)
        if len(renames) == 2:
            raise OSError("no space left on device")
        real(one, other)

    monkeypatch.setattr(store.os, "rename", rename)
    with pytest.raises(OSError, match="no space left"):
        kept(replace(text(), valid="d\n"), tmp_path)
    found = load("ptb", tmp_path)
    assert isinstance(found, Text)
    assert found.valid == "c\n"
    assert [path.name for path in tmp_path.iterdir()] == ["ptb"]


def test_an_unknown_name_lists_those_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no data set 'mnist'\. There is: python-docs, .*agaricus"):
        load("mnist", tmp_path)


def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    assert not is_there("ptb", tmp_path)
    fetch = r"ptb is not in .*\. Fetch it: laconic data get ptb; or import a copy: laconic data import ptb DIR"
    with pytest.raises(FileNotFoundError, match=fetch):
        load("ptb", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"agaricus is not in .*\. Import a copy: laconic data import agaricus"
    ):
        load("agaricus", tmp_path)


@pytest.mark.parametrize("make", MADE)
def test_a_kept_file_that_is_missing_cut_or_changed_is_refused(tmp_path: Path, make: type) -> None:
    data = make()
    kept(data, tmp_path)
    for path in sorted((tmp_path / data.name).iterdir()):
        content = path.read_bytes()
        if path.name == "about.json" or not content:
            continue
        path.write_bytes(content[: len(content) // 3])
        with pytest.raises(ValueError, match=f"{data.name} is broken: .*import it again"):
            load(data.name, tmp_path)
        path.unlink()
        with pytest.raises(ValueError, match=f"{data.name} is broken: .*{path.name}"):
            load(data.name, tmp_path)
        path.write_bytes(content)
    load(data.name, tmp_path)


def test_digests_tell_parts_apart_that_differ_in_one_thing() -> None:
    data = pictures()
    relabelled = replace(data, train_labels=data.train_labels[::-1].copy())
    reshaped = replace(data, train_images=data.train_images.reshape(5, 3, 4, 2))
    digests = {parts_of(one)["train"].digest for one in (data, relabelled, reshaped)}
    said = speech()
    slower = replace(said, rate=16000)
    other = replace(said, train=(replace(said.train[0], speaker="lucas"), said.train[1]))
    digests |= {parts_of(one)["train"].digest for one in (said, slower, other)}
    assert len(digests) == 6


def test_the_catalogue_is_complete() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.about.endswith(".")
        assert entry.citation
        assert entry.terms
        assert (entry.columns > 0) == (entry.kind == "rows")
        for known in entry.parts.values():
            assert known.digest is None or (len(known.digest) == 64 and int(known.digest, 16))

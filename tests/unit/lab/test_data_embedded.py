from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from laconic.lab.data.catalogue import CATALOGUE
from laconic.lab.data.content import kind_of, parts_of
from laconic.lab.data.embedded import EMBEDDED, breast_cancer, dial_tones, digits, python_docs
from laconic.lab.data.kinds import Utterance
from laconic.lab.data.store import load

NOWHERE = Path("no") / "such" / "folder"


@pytest.mark.parametrize("name", EMBEDDED)
def test_built_in_sets_load_without_a_home_and_are_the_same_again(name: str) -> None:
    data = load(name, NOWHERE)
    assert data.name == name
    assert kind_of(data) == CATALOGUE[name].kind
    assert parts_of(data) == parts_of(load(name, NOWHERE))
    for part, known in CATALOGUE[name].parts.items():
        assert parts_of(data)[part].count == known.count


def test_the_catalogue_marks_what_is_built_in() -> None:
    assert {name for name, entry in CATALOGUE.items() if entry.embedded} == set(EMBEDDED)


def test_python_docs_is_cut_at_nine_tenths() -> None:
    text, whole = python_docs(), "\n\n".join(topics[name] for name in sorted(topics))
    assert text.train + text.valid == whole
    assert len(text.train) == len(whole) * 9 // 10
    assert text.test == ""


def test_digits_are_bytes_and_every_fifth_is_for_the_test() -> None:
    data, found = digits(), load_digits()
    assert data.train_images.shape == (1437, 8, 8, 1)
    assert data.train_images.dtype == np.uint8
    assert np.array_equal(data.test_labels, found.target[::5])
    assert np.array_equal(np.rint(data.test_images[..., 0] / 255 * 16), found.images[::5])


def test_breast_cancer_is_standardised_by_what_may_be_trained_on() -> None:
    data = breast_cancer()
    train = data.train.toarray()
    assert data.train.shape == (455, 30)
    assert data.train.dtype == np.float32
    assert train.mean(axis=0) == pytest.approx(np.zeros(30), abs=1e-5)
    assert train.std(axis=0) == pytest.approx(np.ones(30), abs=1e-5)
    assert np.array_equal(data.test_labels, load_breast_cancer().target[::5])


def loudest(one: Utterance) -> set[int]:
    """The two strongest tones of the keypad, by correlation with each."""
    time = np.arange(len(one.samples)) / 8000
    keypad = (697, 770, 852, 941, 1209, 1336, 1477)
    power = {hertz: abs(one.samples @ np.exp(-2j * np.pi * hertz * time)) for hertz in keypad}
    return set(sorted(keypad, key=lambda hertz: -power[hertz])[:2])


def test_a_dial_tone_is_the_two_tones_of_its_key() -> None:
    data, keys = dial_tones(), {"one": {697, 1209}, "five": {770, 1336}, "nine": {852, 1477}, "zero": {941, 1336}}
    heard = [one for one in (*data.train, *data.test) if one.words in keys]
    assert len(heard) == 4 * 4 * 12
    assert all(loudest(one) == keys[one.words] for one in heard)


def test_dial_tones_have_every_digit_of_every_telephone_in_both_parts() -> None:
    data = dial_tones()
    train, test = ({(one.speaker, one.words) for one in part} for part in (data.train, data.test))
    assert data.digits
    assert len(train) == 40
    assert train == test
    assert all(one.samples.dtype == np.int16 for one in data.train)

"""What a codec refuses when it is written, and a recipe with it."""

from __future__ import annotations

import dataclasses

import pytest

import laconic
from contracts.bad_settings import BAD_SETTINGS, refusal
from contracts.registry import CODECS
from laconic import codecs


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [(cls, field, value) for cls in CODECS for field, value in BAD_SETTINGS.get(cls, [])],
)
def test_bad_settings_are_refused_when_written(cls, field, value):
    with pytest.raises(ValueError, match=refusal(field, value)):
        cls(**{field: value})


@pytest.mark.parametrize("cls", CODECS, ids=lambda cls: cls.name)
def test_every_setting_is_examined(cls):
    assert {field for field, _ in BAD_SETTINGS.get(cls, [])} == {f.name for f in dataclasses.fields(cls)}


def test_every_codec_has_a_word_and_a_wrong_one_lists_them():
    assert {type(make()) for make in codecs.WORDS.values()} == set(CODECS)
    assert all(codecs.by_name(word) == make() for word, make in codecs.WORDS.items())
    with pytest.raises(ValueError, match=rf"one of {', '.join(codecs.WORDS)}, got 'int5'\. For exact ones"):
        codecs.by_name("int5")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: laconic.qsgd(0), "levels must be a whole number of 1 or more, got 0"),
        (lambda: laconic.qsgd(128), "levels must be at most 127, got 128"),
        (lambda: laconic.terngrad(-1.0), "deviations must be a finite number"),
        (lambda: laconic.one_bit(memory="bits"), "memory must be one of none, gradient, update; got 'bits'"),
        (lambda: laconic.ef_sign(memory=None), "memory must be one of"),
    ],
)
def test_methods_of_few_bits_refuse_what_their_codecs_do(make, says):
    with pytest.raises(ValueError, match=says):
        make()

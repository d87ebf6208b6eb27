"""Methods as words of the command line."""

from __future__ import annotations

import pytest

import laconic
from laconic.lab.method_words import PAPERS, about, folder_name, make, words_of
from laconic.methods import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_name_alone_is_the_method_with_its_defaults(name):
    assert make(name) == METHODS[name]()


def test_settings_have_the_types_that_python_would_give_them():
    assert make("topk:density=0.001:memory=update") == laconic.topk(0.001, memory="update")
    assert make("sdagc:masking=False:c=15") == laconic.sdagc(15, masking=False)
    assert make("sdagc:masking=false") == laconic.sdagc(masking=False)
    assert make("sdagc:clip=None", clip=1.0) == laconic.sdagc()


def test_a_task_that_clips_has_methods_clip_that_can():
    assert make("sdagc", clip=0.25) == laconic.sdagc(clip=0.25)
    assert make("sdagc:clip=2.0", clip=0.25) == laconic.sdagc(clip=2.0)
    assert make("topk", clip=0.25) == laconic.topk()
    assert make("sdagc", clip=0.0) == laconic.sdagc()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("top", "no method is called 'top'. There are: adacomp"),
        ("topk:", "a method is NAME or NAME:SETTING=VALUE"),
        ("topk:0.01", "a method is NAME or NAME:SETTING=VALUE"),
        ("topk:depth=3", r"topk\(\) has no setting depth. It has: density"),
        ("topk:density=2", r"density must be a number in \(0, 1\], got 2"),
        ("topk:density=many", "density must be a number"),
    ],
)
def test_a_word_that_names_none_is_refused(word, said):
    with pytest.raises(ValueError, match=said):
        make(word)


def test_lists_of_methods():
    assert words_of(" dense, topk:density=0.01,topk ") == ["dense", "topk:density=0.01", "topk"]
    for wrong in ("", "dense,dense"):
        with pytest.raises(ValueError, match="methods must be different ones"):
            words_of(wrong)


def test_unlike_words_have_unlike_folders():
    assert folder_name("topk:density=1e-3") == "topk-density=1e-3"
    assert folder_name("sdagc:law=../x") == "sdagc-law=..-x"


def test_every_method_can_be_said_what_it_is():
    assert set(PAPERS) == set(METHODS)
    for name in METHODS:
        said = about(name)
        assert said.what.startswith("Send ")
        assert said.what.endswith(".")
    assert about("dense").settings == {}

"""Methods as words of the command line."""

from __future__ import annotations

import re

import pytest

import laconic
from laconic.codecs import Linear
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
    assert make("topk:values=int4:exchange=sharded") == laconic.topk(values=Linear(bits=4), exchange="sharded")


def test_a_task_that_clips_has_methods_clip_that_can():
    assert make("sdagc", clip=0.25) == laconic.sdagc(clip=0.25)
    assert make("sdagc:clip=2.0", clip=0.25) == laconic.sdagc(clip=2.0)
    assert make("topk", clip=0.25) == laconic.topk()
    # TernGrad cuts at deviations, which no norm says.
    assert make("terngrad", clip=0.25) == laconic.terngrad()
    assert make("sdagc", clip=0.0) == laconic.sdagc()
    assert make("celgc", clip=0.25) == laconic.celgc(clip=0.25)
    assert make("celgc:send=sdagc", clip=0.25) == laconic.celgc(clip=0.25, send=laconic.sdagc())


def test_how_a_local_method_sends_is_a_word_within_the_word():
    inner = laconic.topk(0.01, memory="update")
    assert make("celgc:every=16:send=topk+density=0.01+memory=update") == laconic.celgc(16, send=inner)
    # Settings of the outer method may stand behind it.
    assert make("local_sgd:send=sdagc+c=15+masking=false:every=4") == laconic.local_sgd(
        4, send=laconic.sdagc(15, masking=False)
    )
    assert make("episode:send=dense") == make("episode:send=None") == laconic.episode()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("top", "no method is called 'top'. There are: adacomp"),
        ("topk:", "a method is NAME or NAME:SETTING=VALUE"),
        ("topk:0.01", "a method is NAME or NAME:SETTING=VALUE"),
        ("topk:depth=3", r"topk\(\) has no setting depth. It has: density"),
        ("topk:density=2", r"density must be a number in \(0, 1\], got 2"),
        ("topk:density=many", "density must be a number"),
        (
            "topk:values=int5",
            "values must be one of exact, bfloat16, int8, .*, got 'int5'. For exact ones leave it out",
        ),
        ("topk:values=4", "wrong type: values must be a codec such as .*, got 4"),
        ("topk:exchange=ring", "exchange must be one of gather, sharded, smallest, led; got 'ring'"),
        ("celgc:send=tpk+density=0.1", "sends by 'tpk.density=0.1', which is no method: no method is called 'tpk'"),
        ("celgc:send=topk+0.1", "'topk.0.1', which is no method: .* settings stand behind a .+, as in send=topk"),
        ("celgc:send=topk+depth=3:every=4", r"sends by 'topk.depth=3', .* topk\(\) has no setting depth"),
        ("celgc:send=topk+density=2", r"sends by 'topk.density=2', .* density must be a number in \(0, 1\], got 2"),
        ("celgc:send=topk:density=0.1", r"celgc\(\) has no setting density"),
        ("celgc:send=", "sends by '', which is no method"),
        ("celgc:send=local_sgd", r"send=local_sgd\(\) has local steps of its own"),
        ("topk:send=dense", r"topk\(\) has no setting send"),
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
    words = [
        "celgc", "celgc:send=topk", "celgc:send=topk+density=0.01", "celgc:send=topk:density=0.01",
        "celgc:send=topk+density=0.01+memory=update", "celgc:send=topk+density=0.01:every=4",
        "topk:memory='update'", 'topk:memory="update"', "topk:memory=update", "sdagc:law=../x", "sdagc:law=..:x",
        *(f"celgc:{':'.join(f'setting_{i}=1' for i in range(20))}:every={every}" for every in (4, 8)),
    ]  # fmt: skip
    names = [folder_name(word) for word in words]
    assert len(set(names)) == len(words)
    for name in names:
        assert re.fullmatch(r"[\w.=+-]{1,130}", name)
        assert not name.startswith(".")


def test_every_method_can_be_said_what_it_is():
    assert set(PAPERS) == set(METHODS)
    for name in METHODS:
        said = about(name)
        assert said.what.endswith(".")
        assert said.what.startswith("Send ") or make(name).local is not None
        assert said.paper
    assert about("dense").settings == {}

"""Methods as words of the command line: ``topk``, or with settings ``topk:density=0.001:memory=update``.

How local methods send is a word within the word, with + for :, as in ``celgc:every=16:send=topk+density=0.01``.
"""

from __future__ import annotations

import ast
import inspect
import re
import zlib
from dataclasses import dataclass
from typing import Any

from laconic.method import Method
from laconic.methods import METHODS, by_name

PAPERS = {
    "adacomp": "Chen et al., AdaComp, AAAI 2018",
    "cat": "Khirirat et al., A Flexible Framework for Communication-Efficient Machine Learning, AAAI 2021",
    "celgc": "Liu et al., A Communication-Efficient Distributed Gradient Clipping Algorithm, NeurIPS 2022",
    "dense": "Li et al., PyTorch Distributed, VLDB 2020",
    "dgc": "Lin et al., Deep Gradient Compression, ICLR 2018",
    "diloco": "Douillard et al., DiLoCo, 2023; Streaming DiLoCo, 2025",
    "ef_sign": "Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019",
    "episode": "Crawshaw, Bao and Liu, EPISODE, ICLR 2023",
    "episode_pp": "Crawshaw, Bao and Liu, EPISODE++, NeurIPS 2023",
    "gaussiank": "Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning, 2019",
    "local_sgd": "Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019",
    "one_bit": "Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014",
    "parallel_clip": "the baseline of Liu et al., NeurIPS 2022",
    "post_local": "Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020",
    "powersgd": "Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019",
    "qsgd": "Alistarh et al., QSGD, NeurIPS 2017",
    "randomk": "Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
    "sdagc": "Chen et al., Standard Deviation Based Adaptive Gradient Compression, CCGRID 2020 (reconstruction)",
    "sidco": "Abdelmoniem et al., SIDCo, MLSys 2021",
    "sparseloco": "SparseLoCo, 2025, arXiv 2508.15706",
    "spartan": "ours: CELGC, TopK-SGD with memory and an outer step at once (docs/local.md)",
    "strom": "Strom, Scalable Distributed DNN Training, Interspeech 2015",
    "terngrad": "Wen et al., TernGrad, NeurIPS 2017",
    "topk": "Aji and Heafield, EMNLP 2017; Lin et al., ICLR 2018",
    "topk_sgd": "Alistarh et al., The Convergence of Sparsified Gradient Methods, NeurIPS 2018",
}


# Longer names of folders are cut: file systems have a limit, and a run's folder is named by more than its method.
_LONGEST_NAME = 120


@dataclass(frozen=True, kw_only=True)
class About:
    """A method for people: what it does in a sentence, its paper, its settings with their defaults."""

    name: str
    what: str
    paper: str
    settings: dict[str, Any]


def about(name: str) -> About:
    """Return what there is to say about a method.

    >>> about("topk").settings["density"]
    0.01
    """
    recipe = METHODS[name]
    # A paper named in the sentence is named again beside it.
    what = (inspect.getdoc(recipe) or "").split("\n")[0]
    settings = {key: value.default for key, value in inspect.signature(recipe).parameters.items()}
    return About(name=name, what=what, paper=PAPERS[name], settings=settings)


def name_of(word: str) -> str:
    """Return the name of the method that a word names.

    >>> name_of("topk:density=0.01")
    'topk'
    """
    return word.split(":")[0]


def make(word: str, *, clip: float = 0.0) -> Method:
    """Return the method that a word names; one that clips local gradients clips at ``clip`` unless the word says.

    >>> make("topk:density=0.001:memory=update").memory
    'update'
    >>> make("sdagc", clip=0.25).clip.norm
    0.25
    >>> make("celgc:every=8:send=topk+density=0.1").compressor
    TopK(density=0.1, whole_below=1024)
    """
    name, *pairs = word.split(":")
    settings: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(
                f"a method is NAME or NAME:SETTING=VALUE:..., got {word!r}. Write topk:density=0.001, say."
            )
        settings[key] = _send(value, word) if key == "send" else _value(value)
    takes_clip = name in METHODS and "clip" in inspect.signature(METHODS[name]).parameters
    if clip and takes_clip and "clip" not in settings:
        settings["clip"] = clip
    try:
        return by_name(name, **settings)
    except TypeError as error:
        raise ValueError(f"{word!r} has a setting of the wrong type: {error}") from None


def words_of(methods: str) -> list[str]:
    """Split a list of methods; a method may be there twice with unlike settings, not with the same.

    >>> words_of("dense,topk:density=0.01")
    ['dense', 'topk:density=0.01']
    """
    words = [word.strip() for word in methods.split(",") if word.strip()]
    twice = sorted({word for word in words if words.count(word) > 1})
    if not words or twice:
        raise ValueError(f"methods must be different ones, got {methods!r}. Write --methods dense,topk,sdagc.")
    for word in words:
        make(word)
    return words


def folder_name(word: str) -> str:
    """Return a name for a method's folder that every file system takes; unlike words have unlike names.

    >>> folder_name("topk:density=0.01:memory=update")
    'topk-density=0.01-memory=update'
    >>> folder_name("celgc:every=16:send=topk+density=0.01")
    'celgc-every=16-send=topk+density=0.01'
    """
    name = re.sub(r"[^\w.=+-]", "-", word)
    if len(name) <= _LONGEST_NAME and re.fullmatch(r"[\w.=+:-]*", word):
        return name
    # What the name does not show must still tell it from others.
    return f"{name[:_LONGEST_NAME]}-{zlib.crc32(word.encode()):08x}"


def _send(text: str, word: str) -> Method | None:
    """Return the method that the word within ``word`` names, with + for :."""
    if text == "None":
        return None
    try:
        return make(text.replace("+", ":"))
    except ValueError as error:
        raise ValueError(
            f"{word!r} sends by {text!r}, which is no method: {error} Within send= settings stand behind a +, as "
            f"in send=topk+density=0.01."
        ) from None


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

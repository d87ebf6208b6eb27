"""Data that needs no download: it comes with Python or scikit-learn, or is made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.lab.data.content import Dataset
from laconic.lab.data.kinds import Pictures, Rows, Speech, Text, Utterance
from laconic.lab.data.libsvm_files import canonical
from laconic.lab.data.needs import needs
from laconic.lab.data.sound_files import DIGITS

_EVERY = 5
_RATE = 8000
_RECORDINGS, _TEST_RECORDINGS = 12, 2
# The keypad of ITU-T Q.23: a key is a tone of its row and a tone of its column, in Hz.
_ROWS, _COLUMNS = (697, 770, 852, 941), (1209, 1336, 1477)
_KEYS = ("123", "456", "789", "*0#")


def python_docs() -> Text:
    """Return the language reference that CPython carries for its help system, in the order of its topics' names."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "this Python comes without pydoc_data (some distributions package it apart). "
            "Install the full standard library, on Debian: apt-get install python3-doc libpython3-stdlib."
        ) from error
    text = "\n\n".join(topics[name] for name in sorted(topics))
    cut = len(text) * 9 // 10
    return Text(name="python-docs", train=text[:cut], valid=text[cut:], test="")


def digits() -> Pictures:
    """Return scikit-learn's handwritten digits, 8 x 8 and gray; every fifth is in the test."""
    found = needs("sklearn.datasets").load_digits()
    # Sixteen steps of gray become 255.
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., None]
    labels, test = found.target.astype(np.int64), _fifth(len(images))
    return Pictures(
        name="digits", train_images=images[~test], train_labels=labels[~test],
        test_images=images[test], test_labels=labels[test], classes=10,
    )  # fmt: skip


def breast_cancer() -> Rows:
    """Return scikit-learn's breast cancer set, standardised by the training part; every fifth is in the test."""
    found = needs("sklearn.datasets").load_breast_cancer()
    labels, test = found.target.astype(np.int64), _fifth(len(found.target))
    known = found.data[~test]
    features = ((found.data - known.mean(axis=0)) / known.std(axis=0)).astype(np.float32)
    return Rows(
        name="breast-cancer", train=canonical(features[~test]), train_labels=labels[~test],
        test=canonical(features[test]), test_labels=labels[test],
    )  # fmt: skip


def _fifth(number: int) -> NDArray[np.bool_]:
    fifth: NDArray[np.bool_] = np.arange(number) % _EVERY == 0
    return fifth


@dataclass(frozen=True, kw_only=True)
class _Speaker:
    """A telephone: how loud it is, how noisy (both of full scale), how long keys are held, how its tones differ."""

    name: str
    level: float
    noise: float
    seconds: float
    high_to_low: float


_SPEAKERS = (
    _Speaker(name="near", level=0.45, noise=0.002, seconds=0.15, high_to_low=1.0),
    _Speaker(name="far", level=0.08, noise=0.006, seconds=0.18, high_to_low=0.7),
    _Speaker(name="slow", level=0.30, noise=0.005, seconds=0.32, high_to_low=1.2),
    _Speaker(name="street", level=0.25, noise=0.040, seconds=0.20, high_to_low=0.9),
)


def dial_tones() -> Speech:
    """Return made-up recordings of the ten digit keys on four telephones, the first two of each in the test."""
    draw = np.random.default_rng(697)
    train: list[Utterance] = []
    test: list[Utterance] = []
    for speaker in _SPEAKERS:
        for digit, word in enumerate(DIGITS):
            for number in range(_RECORDINGS):
                said = Utterance(samples=_tone(draw, speaker, digit), words=word, speaker=speaker.name)
                (test if number < _TEST_RECORDINGS else train).append(said)
    return Speech(name="dial-tones", rate=_RATE, train=tuple(train), test=tuple(test), digits=True)


def _tone(draw: np.random.Generator, speaker: _Speaker, digit: int) -> NDArray[np.int16]:
    row = next(r for r, keys in enumerate(_KEYS) if str(digit) in keys)
    column = _KEYS[row].index(str(digit))
    before, held, after = (
        int(_RATE * seconds) for seconds in (*draw.uniform(0.02, 0.06, 1), speaker.seconds * draw.uniform(0.7, 1.3),
                                             *draw.uniform(0.02, 0.06, 1))
    )  # fmt: skip
    time = np.arange(held) / _RATE
    low, high = (np.sin(2 * np.pi * (hertz * time + draw.uniform())) for hertz in (_ROWS[row], _COLUMNS[column]))
    # Five milliseconds of rise and fall: a tone cut off sharply sounds over the whole band.
    ramp = np.clip(np.minimum(time, time[::-1]) / 0.005, 0.0, 1.0)
    sound = np.zeros(before + held + after)
    level = speaker.level * draw.uniform(0.7, 1.3) / (1 + speaker.high_to_low)
    sound[before : before + held] = level * ramp * (low + speaker.high_to_low * high)
    sound += speaker.noise * draw.standard_normal(len(sound))
    return np.rint(np.clip(sound, -1, 1) * 32767).astype(np.int16)


EMBEDDED: dict[str, Callable[[], Dataset]] = {
    "python-docs": python_docs,
    "digits": digits,
    "breast-cancer": breast_cancer,
    "dial-tones": dial_tones,
}

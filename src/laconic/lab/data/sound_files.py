"""Speech from files: FSDD's recordings, CMU's AN4 and a small part of it with transcripts in JSON."""

from __future__ import annotations

import io
import json
import re
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from laconic.lab.data.kinds import Speech, Utterance
from laconic.lab.data.needs import needs
from laconic.lab.data.sources import View

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FSDD = re.compile(r"(?:recordings/)?(\d)_([a-z]+)_(\d+)\.wav")
_FSDD_TEST = 5
_FSDD_RATE = 8000
_AN4_RATE = 16000
_AN4_PARTS = ("train", "test")


def has_fsdd(view: View) -> bool:
    """Whether a view has recordings named as FSDD's."""
    return any(_FSDD.fullmatch(name) for name in view.names())


def read_fsdd(view: View) -> Speech:
    """Read FSDD, by digit, speaker and number; recordings 0 to 4 of each digit and speaker are the test."""
    found = [match for match in map(_FSDD.fullmatch, view.names()) if match]
    train: list[Utterance] = []
    test: list[Utterance] = []
    for match in sorted(found, key=lambda match: (int(match[1]), match[2], int(match[3]))):
        samples = _samples(view, match[0], _FSDD_RATE)
        said = Utterance(samples=samples, words=DIGITS[int(match[1])], speaker=match[2])
        (test if int(match[3]) < _FSDD_TEST else train).append(said)
    return Speech(name="fsdd", rate=_FSDD_RATE, train=tuple(train), test=tuple(test), digits=True)


def has_an4(view: View) -> bool:
    """Whether a view has AN4's lists of files."""
    return any(view.has(f"etc/an4_{part}.fileids") for part in _AN4_PARTS)


def read_an4(view: View) -> Speech:
    """Read AN4 as CMU gives it out, in the order of its lists; recordings are .sph, .raw or .wav."""
    train, test = (_an4_part(view, part) for part in _AN4_PARTS)
    return Speech(name="an4", rate=_AN4_RATE, train=train, test=test, digits=False)


def has_an4_mini(view: View) -> bool:
    """Whether a view has transcripts in JSON."""
    return any(view.has(f"{part}.jsonl") for part in _AN4_PARTS)


def read_an4_mini(view: View) -> Speech:
    """Read recordings listed in train.jsonl and test.jsonl: an object a line, with ``audio`` and ``text``."""
    train, test = (_listed(view, f"{part}.jsonl") for part in _AN4_PARTS)
    return Speech(name="an4-mini", rate=_AN4_RATE, train=train, test=test, digits=False)


def words_of(line: str) -> str:
    """Return the words of a transcript, in lower case, without sentence marks and the name of the file.

    >>> words_of("<s> RUBOUT G M </s> (an251-fash-b)")
    'rubout g m'
    """
    said = re.sub(r"\([^()]*\)\s*$", "", line)
    return " ".join(word.lower() for word in said.split() if word not in ("<s>", "</s>", "<sil>"))


def _an4_part(view: View, part: str) -> tuple[Utterance, ...]:
    files, said = f"etc/an4_{part}.fileids", f"etc/an4_{part}.transcription"
    ids, lines = (view.read(name).decode("utf-8", "replace").split("\n") for name in (files, said))
    ids, lines = [i.strip() for i in ids if i.strip()], [line for line in lines if line.strip()]
    if len(ids) != len(lines):
        raise ValueError(
            f"{view.place(said)} has {len(lines)} transcripts for the {len(ids)} recordings of {files}. "
            f"Fetch or copy both again."
        )
    return tuple(
        Utterance(samples=_an4_samples(view, f"wav/{i}"), words=words_of(line), speaker=_speaker(i))
        for i, line in zip(ids, lines, strict=True)
    )


def _listed(view: View, name: str) -> tuple[Utterance, ...]:
    lines = [line for line in view.read(name).decode("utf-8", "replace").split("\n") if line.strip()]
    said = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            audio, text = str(row["audio"]), str(row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{view.place(name)}, line {number}: expected an object with audio and text, got {line[:60]!r}."
            ) from error
        samples = _samples(view, audio, _AN4_RATE)
        said.append(Utterance(samples=samples, words=words_of(text), speaker=_speaker(audio)))
    return tuple(said)


def _speaker(path: str) -> str:
    """Return the speaker of a recording of AN4, which is in its name: an251-fash-b."""
    pieces = PurePosixPath(path).stem.split("-")
    return pieces[1] if len(pieces) > 1 else PurePosixPath(path).parent.name


def _an4_samples(view: View, stem: str) -> NDArray[np.int16]:
    # Sphere and WAV say their own rate and order of bytes; CMU's raw files have the high byte first.
    for ending in (".sph", ".wav"):
        if view.has(stem + ending):
            return _samples(view, stem + ending, _AN4_RATE)
    content = view.read(f"{stem}.raw")
    if not content or len(content) % 2:
        raise ValueError(f"{view.place(stem + '.raw')} has {len(content)} bytes, not two a sample. Copy it again.")
    return np.frombuffer(content, ">i2").astype(np.int16)


def _samples(view: View, name: str, rate: int) -> NDArray[np.int16]:
    soundfile, place = needs("soundfile"), view.place(name)
    content = view.read(name)
    try:
        samples, found = soundfile.read(io.BytesIO(content), dtype="int16", always_2d=True)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{place} is not a recording: {error}. Expected WAV or Sphere: copy it again.") from error
    if found != rate or samples.shape[1] != 1 or not len(samples):
        raise ValueError(
            f"{place} has {len(samples)} samples, {samples.shape[1]} channels, {found} samples a second; "
            f"expected one channel with {rate} a second. Copy the original again."
        )
    return np.ascontiguousarray(samples[:, 0], dtype=np.int16)

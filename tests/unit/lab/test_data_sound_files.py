from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from laconic.lab.data.content import parts_of
from laconic.lab.data.imports import READERS, find
from laconic.lab.data.kinds import Speech
from laconic.lab.data.sound_files import words_of

Samples = NDArray[np.int16]


def read(name: str, folder: Path) -> Speech:
    data = READERS[name].read(find(name, folder))
    assert isinstance(data, Speech)
    return data


def sound(seed: int) -> Samples:
    return np.random.default_rng(seed).integers(-(2**15), 2**15, 50 + seed, dtype=np.int16)


def wav(samples: Samples, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


RECORDINGS = {
    f"{d}_{who}_{k}.wav": sound(100 * d + k) for d in (7, 0) for who in ("theo", "ann") for k in (10, 4, 5)
}


def in_a_folder(folder: Path) -> None:
    for name, samples in RECORDINGS.items():
        (folder / name).write_bytes(wav(samples, 8000))


def in_a_repository(folder: Path) -> None:
    (folder / "free-spoken-digit-dataset" / "recordings").mkdir(parents=True)
    in_a_folder(folder / "free-spoken-digit-dataset" / "recordings")


def in_an_archive(
    folder: Path, top: str = "free-spoken-digit-dataset-master/recordings/", form: str = "gz"
) -> None:
    with tarfile.open(folder / f"master.tar.{form}", f"w:{form}") as archive:
        for name, samples in RECORDINGS.items():
            content, member = wav(samples, 8000), tarfile.TarInfo(top + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def in_a_flat_archive(folder: Path) -> None:
    in_an_archive(folder, top="recordings/", form="xz")


@pytest.mark.parametrize("place", [in_a_folder, in_a_repository, in_an_archive, in_a_flat_archive])
def test_fsdd_is_the_same_from_a_folder_a_repository_or_an_archive(
    tmp_path: Path, place: Callable[[Path], None]
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "other").mkdir()
    in_a_folder(tmp_path / "plain")
    place(tmp_path / "other")
    data = read("fsdd", tmp_path / "other")
    assert parts_of(data) == parts_of(read("fsdd", tmp_path / "plain"))
    assert [(one.words, one.speaker) for one in data.test] == [
        ("zero", "ann"), ("zero", "theo"), ("seven", "ann"), ("seven", "theo"),
    ]  # fmt: skip
    assert np.array_equal(data.test[0].samples, sound(4))
    # Number 5 comes before number 10, and both are for training.
    assert [len(one.samples) for one in data.train[:2]] == [55, 60]
    assert data.rate == 8000
    assert data.digits


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"RIFF nothing", r"0_theo_9\.wav is not a recording"),
        (wav(sound(1), 16000), "1 channels, 16000 samples a second; expected one channel with 8000"),
        (wav(np.stack([sound(1), sound(1)], axis=1), 8000), "2 channels"),
        (wav(sound(1)[:0], 8000), "has 0 samples"),
    ],
)
def test_a_recording_that_is_wrong_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    in_a_folder(tmp_path)
    (tmp_path / "0_theo_9.wav").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read("fsdd", tmp_path)


def an4(folder: Path, ending: str, packed: Callable[[Samples], bytes]) -> None:
    (folder / "an4" / "etc").mkdir(parents=True)
    ids = {
        "train": ["an4_clstk/fash/an251-fash-b", "an4_clstk/mmap/an46-mmap-b"],
        "test": ["an4test_clstk/f/cen1-f-b"],
    }
    said = {"train": ["<s> RUBOUT G </s> (an251-fash-b)", "<s> YES </s> (an46-mmap-b)"], "test": ["GO (c1-f-b)"]}
    for part, names in ids.items():
        (folder / f"an4/etc/an4_{part}.fileids").write_text("\n".join(names) + "\n")
        (folder / f"an4/etc/an4_{part}.transcription").write_text("\n".join(said[part]) + "\n")
        for seed, name in enumerate(names):
            target = folder / "an4" / "wav" / f"{name}{ending}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packed(sound(seed)))


def sphere(samples: Samples) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format="NIST", subtype="PCM_16")
    return file.getvalue()


AN4_FORMS: dict[str, Callable[[Samples], bytes]] = {
    ".sph": sphere,
    ".wav": lambda samples: wav(samples, 16000),
    ".raw": lambda samples: samples.astype(">i2").tobytes(),
}


@pytest.mark.parametrize("ending", AN4_FORMS)
def test_an4_is_the_same_from_sphere_wav_or_raw(tmp_path: Path, ending: str) -> None:
    an4(tmp_path, ending, AN4_FORMS[ending])
    data = read("an4", tmp_path)
    assert [(one.words, one.speaker) for one in data.train] == [("rubout g", "fash"), ("yes", "mmap")]
    assert [(one.words, one.speaker) for one in data.test] == [("go", "f")]
    assert all(np.array_equal(one.samples, sound(seed)) for seed, one in enumerate(data.train))
    assert data.rate == 16000
    assert not data.digits


def test_an4_with_a_recording_or_a_transcript_missing_is_refused(tmp_path: Path) -> None:
    an4(tmp_path, ".raw", AN4_FORMS[".raw"])
    said = tmp_path / "an4/etc/an4_train.transcription"
    said.write_text("<s> YES </s> (an251-fash-b)\n")
    with pytest.raises(ValueError, match="has 1 transcripts for the 2 recordings"):
        read("an4", tmp_path)
    said.write_text("<s> YES </s> (an251-fash-b)\n" * 2)
    (tmp_path / "an4/wav/an4_clstk/mmap/an46-mmap-b.raw").unlink()
    with pytest.raises(ValueError, match=r"lacks wav/an4_clstk/mmap/an46-mmap-b\.raw"):
        read("an4", tmp_path)


def test_recordings_listed_in_json(tmp_path: Path) -> None:
    for part, seed in (("train", 1), ("test", 2)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "an1-mxyz-b.wav").write_bytes(wav(sound(seed), 16000))
        row = {"audio": f"{part}/an1-mxyz-b.wav", "duration": 1, "text": "Erase C  Q"}
        (tmp_path / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    data = read("an4-mini", tmp_path)
    assert [(one.words, one.speaker) for one in data.train] == [("erase c q", "mxyz")]
    assert np.array_equal(data.test[0].samples, sound(2))
    (tmp_path / "test.jsonl").write_text('{"text": "no audio"}\n')
    with pytest.raises(ValueError, match=r"test\.jsonl, line 1: expected an object with audio and text"):
        read("an4-mini", tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [("<s> A B </s> (x-y-b)", "a b"), ("go (x-y-b) \n", "go"), ("  O'NEIL  ", "o'neil"), ("<s> </s> (x)", "")],
)
def test_words_of_a_transcript(line: str, words: str) -> None:
    assert words_of(line) == words

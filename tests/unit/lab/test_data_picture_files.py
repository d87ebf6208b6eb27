from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from laconic.lab.data import picture_files
from laconic.lab.data.content import parts_of
from laconic.lab.data.imports import READERS, find
from laconic.lab.data.kinds import Pictures

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def read(name: str, folder: Path) -> Pictures:
    data = READERS[name].read(find(name, folder))
    assert isinstance(data, Pictures)
    return data


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> NDArray[np.uint8]:
    """Six batches of four pictures: the mosaics are of 2 x 2 tiles here."""
    monkeypatch.setattr(picture_files, "_MOSAIC", 2)
    return np.random.default_rng(0).integers(0, 256, (6, 4, 32, 32, 3), dtype=np.uint8)


LABELS = np.arange(24).reshape(6, 4) % 10


def flat(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), -1))


def as_binaries(folder: Path, images: NDArray[np.uint8]) -> None:
    for name, batch, labels in zip(BATCHES, images, LABELS, strict=True):
        records = np.concatenate([labels[:, None].astype(np.uint8), flat(batch)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def as_pickles(folder: Path, images: NDArray[np.uint8]) -> None:
    for name, batch, labels in zip(BATCHES, images, LABELS, strict=True):
        content = {b"data": flat(batch), b"labels": labels.tolist(), b"filenames": [b"a.png"] * 4}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def as_pickles_of_python_2(folder: Path, images: NDArray[np.uint8]) -> None:
    for name, batch, labels in zip(BATCHES, images, LABELS, strict=True):
        content = flat(batch).tobytes()
        shape = b"K\x04M" + struct.pack("<H", 3072) + b"\x86"
        kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + kind
        array += b"\x89T" + struct.pack("<I", len(content)) + content + b"tb"
        numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
        (folder / name).write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u.")


def as_mosaics(folder: Path, images: NDArray[np.uint8]) -> None:
    for name, batch in zip(BATCHES, images, strict=True):
        tiles = batch.reshape(2, 2, 32, 32, 3).swapaxes(1, 2).reshape(64, 64, 3)
        Image.fromarray(tiles).save(folder / f"{name}.webp", lossless=True)
    np.savez(folder / "labels.npz", train=LABELS[:5].ravel().astype(np.uint8), test=LABELS[5].astype(np.uint8))


FORMS = (as_binaries, as_pickles, as_pickles_of_python_2, as_mosaics)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_cifar10_gives_the_same_pictures_and_digests(
    tmp_path: Path, images: NDArray[np.uint8], form: Callable[[Path, NDArray[np.uint8]], None]
) -> None:
    form(tmp_path, images)
    data = read("cifar10", tmp_path)
    wanted = Pictures(
        name="cifar10", train_images=images[:5].reshape(20, 32, 32, 3), train_labels=LABELS[:5].ravel(),
        test_images=images[5], test_labels=LABELS[5], classes=10,
    )  # fmt: skip
    assert np.array_equal(data.train_images, wanted.train_images)
    assert np.array_equal(data.test_labels, wanted.test_labels)
    assert parts_of(data) == parts_of(wanted)


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_batch_is_named(
    tmp_path: Path, images: NDArray[np.uint8], form: Callable[[Path, NDArray[np.uint8]], None]
) -> None:
    form(tmp_path, images)
    next(tmp_path.glob("data_batch_3*")).unlink()
    with pytest.raises(ValueError, match="lacks data_batch_3"):
        read("cifar10", tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_cut_short_is_named(
    tmp_path: Path, images: NDArray[np.uint8], form: Callable[[Path, NDArray[np.uint8]], None]
) -> None:
    form(tmp_path, images)
    cut = next(tmp_path.glob("data_batch_2*"))
    cut.write_bytes(cut.read_bytes()[:-500])
    with pytest.raises(ValueError, match=cut.name.replace(".", r"\.")):
        read("cifar10", tmp_path)


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, images: NDArray[np.uint8]) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    as_pickles(tmp_path, images)
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Trap()}))
    with pytest.raises(ValueError, match=r"data_batch_1 is not a batch of CIFAR-10: it asks for posix\.mkdir"):
        read("cifar10", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_labels_must_match_pictures(tmp_path: Path, images: NDArray[np.uint8]) -> None:
    as_mosaics(tmp_path, images)
    np.savez(tmp_path / "labels.npz", train=np.zeros(19, np.uint8), test=np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="training part has 20 pictures and 19 labels"):
        read("cifar10", tmp_path)
    (tmp_path / "labels.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"labels\.npz is broken"):
        read("cifar10", tmp_path)


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def as_idx(folder: Path) -> NDArray[np.uint8]:
    images = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    for part, count in (("train", 9), ("t10k", 3)):
        packed = io.BytesIO(gzip.compress(idx(images[:count])))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(packed.getvalue())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8)))
    return images


def test_idx_files_are_read_plain_or_packed(tmp_path: Path) -> None:
    images = as_idx(tmp_path)
    data = read("fashion-mnist", tmp_path)
    assert np.array_equal(data.train_images, images[..., None])
    assert np.array_equal(data.test_labels, np.arange(3))
    assert data.test_labels.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x08\x03" + idx(np.zeros(9, np.uint8))[4:], "begins with 00000803, expected 00000801"),
        (idx(np.zeros(9, np.uint8))[:-1], r"has 16 bytes, expected 17 for \(9,\)"),
        (idx(np.zeros(8, np.uint8)), "9 pictures and 8 labels"),
        (idx(np.full(9, 10, np.uint8)), "one of 0 to 9 for each"),
        (b"", "begins with , expected"),
        (idx(np.zeros(9, np.uint8))[:6], "has 6 bytes, expected 8"),
    ],
)
def test_idx_files_that_are_wrong_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    as_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read("fashion-mnist", tmp_path)

"""Pictures from files: CIFAR-10 as pickles, binaries or WebP mosaics, and the idx files of Fashion-MNIST."""

from __future__ import annotations

import codecs
import io
import pickle
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.lab.data.kinds import Pictures
from laconic.lab.data.needs import needs
from laconic.lab.data.sources import View

_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
# A picture is its label and then three planes of 32 x 32 bytes.
_RECORD = 1 + 3 * 32 * 32
_MOSAIC = 100


@dataclass(frozen=True, kw_only=True)
class _Batch:
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def has_cifar10(view: View) -> bool:
    """Whether a view has batches of CIFAR-10, of any form."""
    return any(_has_form(view, ending) for ending in ("", ".bin", ".webp"))


def _has_form(view: View, ending: str) -> bool:
    return any(view.has(name + ending) for name in (*_BATCHES, "test_batch"))


def read_cifar10(view: View) -> Pictures:
    """Read CIFAR-10 in its own order; every form gives the same pictures."""
    if _has_form(view, ".webp"):
        train, test = [_mosaic(view, name) for name in _BATCHES], _mosaic(view, "test_batch")
        labels = _mosaic_labels(view)
        train_labels, test_labels = labels["train"], labels["test"]
    else:
        form = _binary if _has_form(view, ".bin") else _pickled
        batches, test_batch = [form(view, name) for name in _BATCHES], form(view, "test_batch")
        train, test = [batch.images for batch in batches], test_batch.images
        train_labels, test_labels = np.concatenate([batch.labels for batch in batches]), test_batch.labels
    return _pictures("cifar10", view, _Batch(images=np.concatenate(train), labels=train_labels),
                     _Batch(images=test, labels=test_labels))  # fmt: skip


def has_fashion_mnist(view: View) -> bool:
    """Whether a view has files of Fashion-MNIST."""
    return view.has("train-images-idx3-ubyte") or view.has("t10k-images-idx3-ubyte")


def read_fashion_mnist(view: View) -> Pictures:
    """Read the four idx files."""
    train, test = (
        _Batch(
            images=_idx(view, f"{part}-images-idx3-ubyte", 3)[..., None],
            labels=_idx(view, f"{part}-labels-idx1-ubyte", 1).astype(np.int64),
        )
        for part in ("train", "t10k")
    )
    return _pictures("fashion-mnist", view, train, test)


def _pictures(name: str, view: View, train: _Batch, test: _Batch) -> Pictures:
    for part, batch in (("training", train), ("test", test)):
        if len(batch.images) != len(batch.labels) or not np.isin(batch.labels, range(10)).all():
            raise ValueError(
                f"{view.where}: the {part} part has {len(batch.images)} pictures and {len(batch.labels)} labels; "
                f"there must be one of 0 to 9 for each. Fetch or copy the files again."
            )
    return Pictures(
        name=name, train_images=train.images, train_labels=train.labels, test_images=test.images,
        test_labels=test.labels, classes=10,
    )  # fmt: skip


def _planar(flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _binary(view: View, name: str) -> _Batch:
    content = view.read(f"{name}.bin")
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"{view.place(name + '.bin')} has {len(content)} bytes: not a whole number of pictures of "
            f"{_RECORD} bytes. The file of 10,000 has 30,730,000: fetch or copy it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return _Batch(images=_planar(records[:, 1:]), labels=records[:, 0].astype(np.int64))


# pickle has no other way to say what may be loaded than a class of its own.
class _Arrays(pickle.Unpickler):
    """Unpickles arrays of numpy and plain values, and refuses all else: a pickle can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what rebuilds arrays, looked up here and not in the module that the pickle names."""
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        known = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): codecs.encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of pictures does not need")
        return known[module, name]


def _pickled(view: View, name: str) -> _Batch:
    place, content = view.place(name), view.read(name)
    try:
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        found = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        flat, labels = found["data"], np.array(found["labels"], dtype=np.int64)
        if flat.dtype != np.uint8 or flat.ndim != 2 or flat.shape[1] != _RECORD - 1:
            raise ValueError(f"its pictures are {flat.dtype} of shape {flat.shape}")
    # A pickle that is damaged can raise nearly anything.
    except Exception as error:
        raise ValueError(
            f"{place} is not a batch of CIFAR-10: {error or type(error).__name__}. Expected a pickled dict with "
            f"data, uint8 [10000, 3072], and labels: fetch or copy the file again."
        ) from error
    return _Batch(images=_planar(flat), labels=labels)


def _mosaic(view: View, name: str) -> NDArray[np.uint8]:
    image, place = needs("PIL.Image"), view.place(f"{name}.webp")
    content = view.read(f"{name}.webp")
    try:
        with image.open(io.BytesIO(content)) as opened:
            pixels = np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{place} is not a picture: {error}. Copy the file again.") from error
    side = _MOSAIC * 32
    if pixels.shape != (side, side, 3):
        raise ValueError(f"{place} is a picture of {pixels.shape}; a mosaic of 100 x 100 tiles is {side} x {side}.")
    tiles = pixels.reshape(_MOSAIC, 32, _MOSAIC, 32, 3).swapaxes(1, 2)
    return np.ascontiguousarray(tiles.reshape(-1, 32, 32, 3))


def _mosaic_labels(view: View) -> dict[str, NDArray[np.int64]]:
    content = view.read("labels.npz")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as labels:
            return {part: labels[part].astype(np.int64) for part in ("train", "test")}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{view.place('labels.npz')} is broken: {error}. Expected arrays train and test: copy it again."
        ) from error


def _idx(view: View, name: str, dimensions: int) -> NDArray[np.uint8]:
    place, content = view.place(name), view.read(name)
    # Two zeros, 8 for bytes, the number of dimensions; then each dimension in four bytes, the highest first.
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        raise ValueError(
            f"{place} begins with {content[:4].hex()}, expected {magic.hex()}: it is no idx file of bytes in "
            f"{dimensions} dimensions. Fetch or copy it again."
        )
    start = 4 + 4 * dimensions
    shape = tuple(int(n) for n in np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4"))
    expected = start + int(np.prod(shape))
    if len(content) != expected:
        raise ValueError(f"{place} has {len(content)} bytes, expected {expected} for {shape}. Fetch it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()

"""What is in a data set, whatever files it came from: counts and digests of its parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laconic.lab.data.kinds import Pictures, Rows, SparseMatrix, Speech, Text, Utterance

Dataset = Text | Pictures | Speech | Rows
Kind = Literal["text", "pictures", "speech", "rows"]
UNITS: dict[Kind, str] = {"text": "lines", "pictures": "pictures", "speech": "recordings", "rows": "rows"}


@dataclass(frozen=True, kw_only=True)
class Part:
    """How many there are in a part, and the SHA-256 of its content."""

    count: int
    digest: str


def kind_of(data: Dataset) -> Kind:
    """Return the kind's name."""
    kinds: dict[type, Kind] = {Text: "text", Pictures: "pictures", Speech: "speech", Rows: "rows"}
    return kinds[type(data)]


def parts_of(data: Dataset) -> dict[str, Part]:
    """Return the parts of a data set by name: train, valid where there is one, and test."""
    if isinstance(data, Text):
        texts = {"train": data.train, "valid": data.valid, "test": data.test}
        return {part: _text(text) for part, text in texts.items()}
    if isinstance(data, Pictures):
        return {
            "train": _pictures(data.train_images, data.train_labels),
            "test": _pictures(data.test_images, data.test_labels),
        }
    if isinstance(data, Speech):
        return {"train": _speech(data.rate, data.train), "test": _speech(data.rate, data.test)}
    return {"train": _rows(data.train, data.train_labels), "test": _rows(data.test, data.test_labels)}


def _text(text: str) -> Part:
    return Part(count=text.count("\n"), digest=_digest([text.encode("utf-8")]))


def _pictures(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Part:
    content = [_json(list(images.shape)), _bytes(images, "u1"), _bytes(labels, "<i8")]
    return Part(count=len(images), digest=_digest(content))


def _speech(rate: int, said: tuple[Utterance, ...]) -> Part:
    content = [_json(rate)]
    for one in said:
        content += [_json([len(one.samples), one.words, one.speaker]), _bytes(one.samples, "<i2")]
    return Part(count=len(said), digest=_digest(content))


def _rows(features: SparseMatrix, labels: NDArray[np.int64]) -> Part:
    content = [_json([int(n) for n in features.shape]), _bytes(features.indptr, "<i8")]
    content += [_bytes(features.indices, "<i8"), _bytes(features.data, "<f4"), _bytes(labels, "<i8")]
    return Part(count=len(labels), digest=_digest(content))


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _bytes(array: NDArray[np.generic], kind: str) -> bytes:
    return np.ascontiguousarray(array, dtype=kind).tobytes()


def _digest(content: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()

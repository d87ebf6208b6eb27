from __future__ import annotations

import bz2
import lzma
from pathlib import Path

import numpy as np
import pytest

from laconic.lab.data.content import parts_of
from laconic.lab.data.imports import READERS, find
from laconic.lab.data.kinds import Rows
from laconic.lab.data.libsvm_files import hold_out

TRAIN = b"-1 1:1 123:0.5\n+1 2:1\n-1 3:0 4:1e-3\n"
TEST = b"+1 5:1\n-1 \n"


def read(name: str, folder: Path) -> Rows:
    data = READERS[name].read(find(name, folder))
    assert isinstance(data, Rows)
    return data


def test_rows_are_sparse_float32_with_labels_of_0_and_1(tmp_path: Path) -> None:
    (tmp_path / "a9a").write_bytes(TRAIN)
    (tmp_path / "a9a.t").write_bytes(TEST)
    data = read("a9a", tmp_path)
    wanted = np.zeros((3, 123), np.float32)
    wanted[0, 0], wanted[0, 122], wanted[1, 1], wanted[2, 3] = 1, 0.5, 1, 1e-3
    assert np.array_equal(data.train.toarray(), wanted)
    assert data.train.dtype == np.float32
    assert data.test.shape == (2, 123)
    assert data.train_labels.tolist() == [0, 1, 0]
    assert data.test_labels.tolist() == [1, 0]
    assert data.train_labels.dtype == np.int64


def test_packing_order_and_stored_zeros_do_not_change_the_digest(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "a9a").write_bytes(TRAIN)
    (tmp_path / "one" / "a9a.t.xz").write_bytes(lzma.compress(TEST))
    (tmp_path / "two" / "a9a.bz2").write_bytes(bz2.compress(b"0 1:1 123:0.50\n1 2:1 3:0\n0 4:0.001\n"))
    (tmp_path / "two" / "a9a.t").write_bytes(TEST)
    assert parts_of(read("a9a", tmp_path / "one")) == parts_of(read("a9a", tmp_path / "two"))


def test_another_value_label_or_width_changes_the_digest(tmp_path: Path) -> None:
    digests = set()
    lines = (TRAIN, TRAIN.replace(b"0.5", b"0.25"), TRAIN.replace(b"+1 2", b"-1 2"), TRAIN.replace(b"2:1", b"3:1"))
    for content in lines:
        (tmp_path / "a9a").write_bytes(content)
        (tmp_path / "w8a").write_bytes(content)
        digests |= {parts_of(read(name, tmp_path))["train"].digest for name in ("a9a", "w8a")}
    assert len(digests) == 8


def test_without_a_test_file_every_tenth_row_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "w8a").write_bytes(b"".join(b"%d %d:1\n" % (i % 2, i + 1) for i in range(25)))
    data = read("w8a", tmp_path)
    assert data.test.shape == (0, 300)
    held = hold_out(data)
    assert held.test.nonzero()[1].tolist() == [0, 10, 20]
    assert held.train.nonzero()[1].tolist() == [i for i in range(25) if i % 10]
    assert held.train_labels.tolist() == [i % 2 for i in range(25) if i % 10]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a9a", b"1 124:1\n", r"a9a is not LIBSVM text with columns from 1 to 123"),
        ("a9a", b"1 0:1\n", "columns from 1 to 123"),
        ("a9a", b"<html>not found</html>\n", "is not LIBSVM text"),
        ("a9a", b"1 1:1\n2 1:1\n3 1:1\n", r"has labels \[1.0, 2.0, 3.0\]; two classes are -1 and \+1"),
        ("a9a", b"", "has no rows"),
        ("a9a.xz", lzma.compress(TRAIN * 500)[:-30], r"a9a\.xz is broken: .*Fetch or copy"),
        ("a9a.bz2", b"this was never bz2", r"a9a\.bz2 is broken"),
    ],
)
def test_files_that_are_wrong_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read("a9a", tmp_path)


def test_a_test_file_alone_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "a9a.t").write_bytes(TEST)
    with pytest.raises(ValueError, match="lacks a9a "):
        read("a9a", tmp_path)

"""Rows of sparse features from LIBSVM's text files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from laconic.lab.data.kinds import Rows, SparseMatrix
from laconic.lab.data.needs import needs
from laconic.lab.data.sources import BROKEN, View, broken

# The training file and the test file.
_FILES = {
    "a9a": ("a9a", "a9a.t"),
    "w8a": ("w8a", "w8a.t"),
    "rcv1": ("rcv1_train.binary", "rcv1_test.binary"),
    "rcv1-small": ("rcv1_small.train", "rcv1_small.test"),
    "agaricus": ("agaricus.txt.train", "agaricus.txt.test"),
}
_HELD_OUT = 10


@dataclass(frozen=True, kw_only=True)
class _Part:
    features: SparseMatrix
    labels: NDArray[np.int64]


def has_rows(view: View, name: str) -> bool:
    """Whether a view has one of a set's files."""
    return any(view.has(file) for file in _FILES[name])


def read_rows(view: View, name: str, columns: int) -> Rows:
    """Read a set; where its test file is missing the test has no rows: see ``hold_out``."""
    train_file, test_file = _FILES[name]
    train = _part(view, train_file, columns)
    test = _Part(features=train.features[:0], labels=train.labels[:0])
    if view.has(test_file):
        test = _part(view, test_file, columns)
    return Rows(
        name=name, train=train.features, train_labels=train.labels, test=test.features, test_labels=test.labels
    )


def hold_out(rows: Rows) -> Rows:
    """Return the rows with every tenth of the training part as the test, from the first."""
    tenth = np.arange(len(rows.train_labels)) % _HELD_OUT == 0
    return replace(
        rows, train=rows.train[~tenth], train_labels=rows.train_labels[~tenth],
        test=rows.train[tenth], test_labels=rows.train_labels[tenth],
    )  # fmt: skip


def canonical(features: SparseMatrix) -> SparseMatrix:
    """Return CSR of float32 with sorted columns and no zeros stored."""
    matrix = needs("scipy.sparse").csr_matrix(features, dtype=np.float32)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _part(view: View, file: str, columns: int) -> _Part:
    place = view.place(file)
    try:
        with view.open(file) as content:
            found = needs("sklearn.datasets").load_svmlight_file(
                content, n_features=columns, dtype=np.float32, zero_based=False
            )
    except BROKEN as error:
        raise ValueError(broken(place, error)) from error
    except ValueError as error:
        raise ValueError(
            f"{place} is not LIBSVM text with columns from 1 to {columns} (label column:value ...): {error}"
        ) from error
    return _Part(features=canonical(found[0]), labels=_labels(found[1], place))


def _labels(found: NDArray[np.float64], place: str) -> NDArray[np.int64]:
    if not len(found):
        raise ValueError(f"{place} has no rows. Fetch or copy the file again.")
    values = {float(value) for value in np.unique(found)}
    if not (values <= {-1.0, 1.0} or values <= {0.0, 1.0}):
        raise ValueError(f"{place} has labels {sorted(values)[:5]}; two classes are -1 and +1, or 0 and 1.")
    return (found > 0).astype(np.int64)

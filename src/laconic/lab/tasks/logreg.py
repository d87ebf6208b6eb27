"""Rows of sparse features told apart by logistic regression: a convex task, whose answer is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.arguments import check_number
from laconic.lab.data import kinds
from laconic.lab.data.content import kind_of
from laconic.lab.data.splits import check_split, split
from laconic.lab.data.store import load
from laconic.lab.order import Order
from laconic.lab.training import Training
from laconic.lab.work import Metric, Place, Tally

_EVALUATED_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Logreg:
    """Tell sparse rows apart by logistic regression: breast-cancer or LIBSVM's sets; judged by accuracy.

    The objective is mean log(1 + exp(-s*(x.w + b))) + l2/2*|w|^2, s = +1 or -1 a row's label.
    """

    name: ClassVar[str] = "logreg"

    data: str = "breast-cancer"
    """breast-cancer (no download), a9a, w8a, rcv1, rcv1-small, agaricus."""
    split: str = "iid"
    """How rows are shared out over ranks: iid, similarity:S (S in percent) or dirichlet:A."""
    full_batch: bool = False
    """Use all of a rank's rows in each step: the mean gradient over ranks is then the objective's own."""
    l2: float | None = None
    """Weight of the penalty; by default one over the number of rows."""

    def __post_init__(self) -> None:
        check_split(self.split, allowed=("iid", "similarity", "dirichlet"))
        if self.l2 is not None:
            check_number("l2", self.l2, 0.0, "Write --l2 0.0001.")

    def settled(self) -> Logreg:
        """Return this task with what it settles by itself."""
        return self

    def choice(self) -> Training:
        """Return rates that come near the optimum with one to four ranks; shorter rows can take a higher one."""
        small = self.data in ("breast-cancer", "rcv1-small")
        rate = {"breast-cancer": 0.1, "rcv1": 3.0, "rcv1-small": 3.0}.get(self.data, 0.3)
        common = Training(
            batch=16 if small else 64, optimizer="sgd", rate=rate, momentum=0.9, decay=0.0, clip=0.0,
            schedule="cosine", final=0.0, warmup=0,
        )  # fmt: skip
        if self.full_batch:
            return Training(steps=500, schedule="constant").filled(common)
        return Training(epochs=20.0 if small else 10.0).filled(common)

    def prepare(self, place: Place) -> LogregWork:
        """Load the rows, share them out and build the model."""
        data = load(self.data, place.data_home)
        if not isinstance(data, kinds.Rows):
            raise ValueError(f"logreg wants rows; {self.data!r} is {kind_of(data)}. Try --data breast-cancer.")
        return LogregWork(self, data, place)


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Rows in compressed form: row i has the ``values`` and ``columns`` from ``offsets[i]`` to ``offsets[i+1]``."""

    columns: Tensor
    values: Tensor
    offsets: Tensor
    labels: Tensor

    def between(self, first: int, last: int) -> RowBatch:
        """Return the rows from the first up to the last, without it."""
        start, end = int(self.offsets[first]), int(self.offsets[last])
        return RowBatch(
            columns=self.columns[start:end],
            values=self.values[start:end],
            offsets=self.offsets[first : last + 1] - start,
            labels=self.labels[first:last],
        )


class Logistic(nn.Module):
    """Scores x.w + b of rows x; above 0 is label 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, columns: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
        """Return the scores of rows in compressed form."""
        # A bag of one-number embeddings, each times its value, is a sparse dot product.
        sums = functional.embedding_bag(
            columns, self.weight[:, None], offsets, mode="sum", per_sample_weights=values, include_last_offset=True
        )
        return sums[:, 0] + self.bias


class LogregWork:
    """Rows stay a sparse matrix; a batch is cut out of it."""

    metric = Metric(name="accuracy", lower_is_better=False)
    splits: tuple[str, ...] = ("test",)

    def __init__(self, task: Logreg, data: kinds.Rows, place: Place) -> None:
        self._data, self._place = data, place
        self._l2 = 1 / data.train.shape[0] if task.l2 is None else task.l2
        self.model: nn.Module = Logistic(data.train.shape[1]).to(place.device)
        parts = split(task.split, ranks=place.ranks, seed=place.seed, labels=data.train_labels)
        # A rank with more rows than others counts for more, so that the mean over ranks is the mean over rows.
        self._share = 1.0
        self._all: RowBatch | None = None
        if task.full_batch:
            part = parts[place.rank]
            self._share = len(part) * place.ranks / sum(len(other) for other in parts)
            self._all = self._cut(data.train[part], data.train_labels[part])
            self.steps_per_epoch = 1
        else:
            self._order = Order(parts, batch=place.batch, seed=place.seed, rank=place.rank)
            self.steps_per_epoch = self._order.steps_per_epoch
            self._epoch, self._rows = -1, self._cut(data.train[:0], data.train_labels[:0])

    def batch(self, step: int) -> RowBatch:
        """Return this rank's rows of a step."""
        if self._all is not None:
            return self._all
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            # An epoch's rows are put in order at once: to cut out each batch by itself takes as long as a step.
            which = self._order.of_epoch(epoch)
            self._epoch, self._rows = epoch, self._cut(self._data.train[which], self._data.train_labels[which])
        return self._rows.between(within * self._place.batch, (within + 1) * self._place.batch)

    def loss(self, model: nn.Module, batch: RowBatch) -> Tensor:
        """Return the mean logistic loss of a batch and the penalty."""
        scores = model(batch.columns, batch.values, batch.offsets)
        penalty = self._l2 / 2 * self.model.get_parameter("weight").square().sum()
        return self._share * functional.binary_cross_entropy_with_logits(scores, batch.labels) + penalty

    @torch.no_grad()
    def evaluate(self, split: str) -> Tally:
        """Count what is told right among this rank's share of the test rows; the loss is without the penalty."""
        assert split == "test", f"there is no split {split!r}"
        loss, right = 0.0, 0
        rows = self._data.test[self._place.rank :: self._place.ranks]
        labels = self._data.test_labels[self._place.rank :: self._place.ranks]
        self.model.eval()
        for start in range(0, len(labels), _EVALUATED_AT_ONCE):
            some = slice(start, start + _EVALUATED_AT_ONCE)
            batch = self._cut(rows[some], labels[some])
            scores = self.model(batch.columns, batch.values, batch.offsets)
            loss += float(functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum"))
            right += int(((scores > 0) == (batch.labels > 0)).sum())
        self.model.train()
        return Tally(loss=loss, examples=len(labels), score=right, scored=len(labels))

    def state_dict(self) -> dict[str, Any]:
        """A step leaves nothing behind but the model."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to go on from but the model."""

    def _cut(self, rows: kinds.SparseMatrix, labels: Any) -> RowBatch:
        device = self._place.device
        return RowBatch(
            columns=torch.from_numpy(rows.indices).to(device),
            values=torch.from_numpy(rows.data).to(device),
            offsets=torch.from_numpy(rows.indptr).to(device),
            labels=torch.from_numpy(labels).to(device, torch.float32),
        )

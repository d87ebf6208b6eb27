"""Pictures told apart by a residual network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from laconic.arguments import check_choice, check_whole
from laconic.lab.data import kinds
from laconic.lab.data.content import kind_of
from laconic.lab.data.splits import check_split, split
from laconic.lab.data.store import load
from laconic.lab.models.resnet import ResNet
from laconic.lab.order import Order
from laconic.lab.seeds import seed_for
from laconic.lab.training import Training
from laconic.lab.work import Metric, Place, Tally

Depth = Literal["resnet20", "resnet32", "resnet56", "resnet110"]
_DEPTHS: dict[str, int] = {"resnet20": 20, "resnet32": 32, "resnet56": 56, "resnet110": 110}
_EVALUATED_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Vision:
    """Tell pictures apart: a residual network on digits, CIFAR-10 or Fashion-MNIST; judged by accuracy."""

    name: ClassVar[str] = "vision"

    data: str = "digits"
    """digits (no download), cifar10, fashion-mnist."""
    model: Depth = "resnet20"
    """Residual network of He et al. 2016, section 4.2, by its depth."""
    split: str = "iid"
    """How pictures are shared out over ranks: iid, similarity:S (S in percent) or dirichlet:A."""
    augment: bool = True
    """Shift and mirror training pictures at random; digits are left as they are."""
    width: int = 16
    """Filters of the first stage; the second has 2 and the third 4 times as many."""
    train_examples: int | None = None
    """Train on only the first so many pictures."""
    test_examples: int | None = None
    """Test on only the first so many pictures."""

    def __post_init__(self) -> None:
        check_choice("model", self.model, tuple(_DEPTHS))
        check_split(self.split, allowed=("iid", "similarity", "dirichlet"))
        check_whole("width", self.width, 1, "Write --width 16.")
        for name in ("train_examples", "test_examples"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, f"Write --{name.replace('_', '-')} 1000, say.")

    def settled(self) -> Vision:
        """Return this task with what it settles by itself."""
        return self

    def choice(self) -> Training:
        """Return the settings of the paper, whose batch of 128 is that of two ranks; short ones for digits.

        64,000 steps are 164 epochs of CIFAR-10. As in the paper, only 110 layers begin slowly, for 400 steps.
        """
        common = Training(
            batch=64, optimizer="sgd", rate=0.1, momentum=0.9, decay=1e-4, clip=0.0, schedule="steps", final=0.0,
            warmup=400 if self.model == "resnet110" else 0,
        )  # fmt: skip
        if self.data == "digits":
            return Training(epochs=10.0, batch=32, schedule="cosine", warmup=0).filled(common)
        epochs = 30.0 if self.data == "fashion-mnist" else 164.0
        return Training(epochs=epochs).filled(common)

    def prepare(self, place: Place) -> VisionWork:
        """Load the pictures, share them out and build the model."""
        data = load(self.data, place.data_home)
        if not isinstance(data, kinds.Pictures):
            raise ValueError(f"vision wants pictures; {self.data!r} is {kind_of(data)}. Try --data digits.")
        return VisionWork(self, data, place)


@dataclass(frozen=True, kw_only=True)
class PictureBatch:
    """Images [number, channels, height, width], normalised, and their classes."""

    images: Tensor
    labels: Tensor


class VisionWork:
    """Pictures as bytes on the device; a batch is picked, normalised and moved about there."""

    metric = Metric(name="accuracy", lower_is_better=False)
    splits: tuple[str, ...] = ("test",)

    def __init__(self, task: Vision, data: kinds.Pictures, place: Place) -> None:
        train, labels = data.train_images[: task.train_examples], data.train_labels[: task.train_examples]
        parts = split(task.split, ranks=place.ranks, seed=place.seed, labels=labels)
        self._order = Order(parts, batch=place.batch, seed=place.seed, rank=place.rank)
        self.steps_per_epoch = self._order.steps_per_epoch
        channels = train.shape[3]
        net = ResNet(_DEPTHS[task.model], channels=channels, classes=data.classes, width=task.width)
        self.model: nn.Module = net.to(place.device)
        self._place = place
        self._padding = padding_for(train.shape[1]) if task.augment else 0
        mean_std = torch.from_numpy(mean_and_std(train)).to(place.device)
        self._mean, self._std = mean_std[0], mean_std[1]
        self._train, self._train_labels = _there(train, place), _there(labels, place)
        mine = slice(place.rank, task.test_examples, place.ranks)
        self._test, self._test_labels = _there(data.test_images[mine], place), _there(data.test_labels[mine], place)

    def batch(self, step: int) -> PictureBatch:
        """Return this rank's pictures of a step, shifted and mirrored at random."""
        which = torch.from_numpy(self._order.indices(step)).to(self._place.device)
        images = self._normalised(self._train[which])
        if self._padding:
            # Drawn on the CPU, so that a GPU draws the same.
            draw = torch.Generator().manual_seed(seed_for(self._place.seed, "step", self._place.rank, step))
            moves = torch.randint(-self._padding, self._padding + 1, (2, len(which)), generator=draw)
            mirror = torch.randint(2, (len(which),), generator=draw).bool()
            down, right = moves.to(images.device)
            images = moved(images, down=down, right=right, mirror=mirror.to(images.device))
        return PictureBatch(images=_channels_first(images), labels=self._train_labels[which])

    def loss(self, model: nn.Module, batch: PictureBatch) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(model(batch.images), batch.labels)

    @torch.no_grad()
    def evaluate(self, split: str) -> Tally:
        """Count what is told right among this rank's share of the test pictures."""
        check_choice("split", split, self.splits)
        # Loss and right answers, read once at the end: to read a number is to wait for the GPU.
        sums = torch.zeros(2, dtype=torch.float64, device=self._place.device)
        self.model.eval()
        for images, labels in zip(
            self._test.split(_EVALUATED_AT_ONCE), self._test_labels.split(_EVALUATED_AT_ONCE), strict=True
        ):
            scores = self.model(_channels_first(self._normalised(images)))
            sums[0] += F.cross_entropy(scores, labels, reduction="sum")
            sums[1] += (scores.argmax(1) == labels).sum()
        self.model.train()
        loss, right = sums.tolist()
        number = len(self._test_labels)
        return Tally(loss=loss, examples=number, score=right, scored=number)

    def state_dict(self) -> dict[str, Any]:
        """A step leaves nothing behind but the model."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to go on from but the model."""

    def _normalised(self, images: Tensor) -> Tensor:
        return (images.float() - self._mean) / self._std


def padding_for(height: int) -> int:
    """Return by how many pixels a picture is shifted at most: 4 from 32 pixels on, 2 from 16 on, else none."""
    return 4 if height >= 32 else 2 if height >= 16 else 0


def mean_and_std(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the mean and the standard deviation of each channel, [2, channels]; a constant channel's is 1."""
    values = np.arange(256)
    # Counted, not added up: exact, and no copy of the pictures in floating point.
    counts = np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[3])])
    mean = (counts * values).sum(1) / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    return np.stack([mean, np.where(variance > 0, np.sqrt(variance), 1.0)]).astype(np.float32)


def moved(images: Tensor, *, down: Tensor, right: Tensor, mirror: Tensor) -> Tensor:
    """Return images [number, height, width, channels] mirrored left to right where asked, cut out of a zero frame.

    Pixel (i, j) of a picture comes from (i + down, j + right), 0 where that is outside: a random crop of the
    picture with zeros around it. The pictures are normalised before, so that 0 is their mean.
    """
    number, height, width, _ = images.shape
    rows = torch.arange(height, device=images.device) + down[:, None]
    columns = torch.arange(width, device=images.device) + right[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    columns = torch.where(mirror[:, None], width - 1 - columns, columns).clamp(0, width - 1)
    rows = rows.clamp(0, height - 1)
    picture = torch.arange(number, device=images.device)[:, None, None]
    return images[picture, rows[:, :, None], columns[:, None, :]] * inside[..., None]


def _there(array: NDArray[Any], place: Place) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(place.device)


def _channels_first(images: Tensor) -> Tensor:
    first = images.permute(0, 3, 1, 2)
    # A CPU convolves colour up to twice as fast as it lies here.
    if images.device.type == "cpu" and images.shape[3] > 1:
        return first
    # With one channel contiguous() would leave the strides, and DDP warn of the first gradient's.
    return first.clone(memory_format=torch.contiguous_format)

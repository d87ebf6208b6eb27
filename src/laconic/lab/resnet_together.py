"""Losses and gradients of residual networks on all ranks of a process at once.

Activations lie as [pictures, ranks * channels, height, width]. Seen as [pictures * ranks, channels, ...] that is
one large batch, which ranks with the same weights are convolved in; seen as it is, every rank has channels of its
own, so that normalising a batch and the gradients of weights are each rank's own, in one call for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from laconic.lab.models.resnet import Block, ResNet
from laconic.lab.side_by_side import buffers_side_by_side, parameters_side_by_side
from laconic.lab.tasks.vision import PictureBatch


class _SameWeights(torch.autograd.Function):
    """A convolution by one set of weights, whose gradient has a row a rank.

    ``rows`` [ranks, ...] are equal, and the first is read.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, rows)
        ctx.stride = stride
        ranks, weight = len(rows), rows[0]
        y = F.conv2d(_merged(x, ranks), weight, stride=stride, padding=weight.shape[-1] // 2)
        return y.view(len(x), -1, *y.shape[2:])

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor | None, Tensor, None]:
        x, rows = ctx.saved_tensors
        ranks, weight, grad = len(rows), rows[0], above[0].contiguous()
        size, stride = weight.shape[-1] // 2, ctx.stride
        down = None
        if ctx.needs_input_grad[0]:
            # One large batch, as forward has it.
            down = _back(_merged(grad, ranks), _merged(x, ranks), weight, stride, size, 1, [True, False, False])[0]
            down = down.view_as(x)
        each = _back(grad, x, rows.flatten(0, 1), stride, size, ranks, [False, True, False])[1]
        return down, each.view_as(rows), None


def _merged(x: Tensor, ranks: int) -> Tensor:
    return x.view(len(x) * ranks, -1, *x.shape[2:])


def _back(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, size: int, groups: int, wanted: list[bool]
) -> Sequence[Tensor]:
    both = [stride, stride]
    found: Sequence[Tensor] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, both, [size, size], [1, 1], False, [0, 0], groups, wanted
    )
    return found


class PicturesTogether:
    """The networks of all ranks; ``run`` leaves in ``losses`` and ``grads`` what each rank's batch gives.

    ``images`` [pictures, ranks, channels, height, width] and ``labels`` [pictures, ranks] are filled before.
    Running statistics of batches become parts of common tensors, and go on being each rank's own. ``grads`` has by
    name of the parameter a tensor [ranks, *shape].
    """

    def __init__(self, models: Sequence[ResNet], images: Tensor, *, same: bool) -> None:
        self._models, self._same = models, same
        ranks, device = len(models), images.device
        self.images = images.new_empty(len(images), ranks, *images.shape[1:])
        self.labels = torch.zeros(len(images), ranks, dtype=torch.int64, device=device)
        self.losses = images.new_zeros(ranks)
        self.grads = {n: p.new_zeros(ranks, *p.shape) for n, p in models[0].named_parameters()}
        self._held = {} if same else parameters_side_by_side(models)
        self._statistics = buffers_side_by_side(models)

    def fill(self, batches: Sequence[PictureBatch]) -> None:
        """Take the batches of all ranks, which must have equally many pictures."""
        torch.stack([batch.images for batch in batches], 1, out=self.images)
        torch.stack([batch.labels for batch in batches], 1, out=self.labels)

    def run(self) -> None:
        """Compute the losses and gradients of the batches that lie in ``images`` and ``labels``."""
        leaves = self._leaves()
        with torch.enable_grad():
            scores = self._scores(leaves)
            each = F.cross_entropy(scores.flatten(0, 1), self.labels.T.flatten(), reduction="none")
            losses = each.view(len(self._models), -1).mean(1)
            found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        with torch.no_grad():
            self.losses.copy_(losses)
            torch._foreach_copy_(list(self.grads.values()), list(found))

    def _leaves(self) -> dict[str, Tensor]:
        """Return the weights by name, a row a rank."""
        if self._same:
            named, ranks = self._models[0].named_parameters(), len(self._models)
            return {n: p.detach().expand(ranks, *p.shape).requires_grad_() for n, p in named}
        return {name: rows.detach().requires_grad_() for name, rows in self._held.items()}

    def _scores(self, leaves: dict[str, Tensor]) -> Tensor:
        """Return scores [ranks, pictures, classes]."""
        model = self._models[0]
        x = self.images.flatten(1, 2)
        x = F.relu(self._normalised(self._convolved(x, leaves["conv.weight"], 1), leaves, "bn"))
        for number, block in enumerate(model.stages):
            assert isinstance(block, Block)
            x = self._block(x, block, leaves, f"stages.{number}")
        ranks = len(self._models)
        seen = x.mean(dim=(2, 3)).view(len(x), ranks, -1).transpose(0, 1)
        return torch.baddbmm(leaves["linear.bias"].unsqueeze(1), seen, leaves["linear.weight"].transpose(1, 2))

    def _block(self, x: Tensor, block: Block, leaves: dict[str, Tensor], name: str) -> Tensor:
        y = self._convolved(x, leaves[f"{name}.conv1.weight"], block.stride)
        y = F.relu(self._normalised(y, leaves, f"{name}.bn1"))
        y = self._normalised(self._convolved(y, leaves[f"{name}.conv2.weight"], 1), leaves, f"{name}.bn2")
        # A rank's own channels come one behind the other: what is new is put behind each rank's.
        ranks = len(self._models)
        return F.relu(block.shortcut(_merged(x, ranks)).reshape(y.shape) + y)

    def _convolved(self, x: Tensor, rows: Tensor, stride: int) -> Tensor:
        if self._same:
            y: Tensor = _SameWeights.apply(x, rows, stride)  # type: ignore[no-untyped-call]
            return y
        size = rows.shape[-1] // 2
        return F.conv2d(x, rows.flatten(0, 1), stride=stride, padding=size, groups=len(rows))

    def _normalised(self, x: Tensor, leaves: dict[str, Tensor], name: str) -> Tensor:
        mean, var, steps = (self._statistics[f"{name}.{of}"] for of in _STATISTICS)
        steps.add_(1)
        weight, bias = (leaves[f"{name}.{of}"].flatten() for of in ("weight", "bias"))
        return F.batch_norm(x, mean.flatten(), var.flatten(), weight, bias, training=True)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

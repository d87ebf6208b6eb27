"""Losses and gradients of LSTM and AWD-LSTM language models on all ranks of a process at once, written out by hand.

A rank's LSTM alone reads its weights once for every token of a window, for a few streams, and kernels wait for each
other. Here ranks with the same weights are read for as one, and ranks with weights of their own go side by side in
the same kernels; either way every rank has gradients of its own, from one product over a whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from laconic.lab.lstm_cells import backward_, forward_
from laconic.lab.models.awd import AWD
from laconic.lab.models.lstm import LSTM
from laconic.lab.side_by_side import parameters_side_by_side
from laconic.lab.tasks.lm import Window
from laconic.lab.text_drops import drawn, dropped, penalised_


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """What a layer's forward leaves for its backward, by group, time and stream."""

    inputs: Tensor
    gates: Tensor
    outputs: Tensor
    cells: Tensor
    recurrent: Tensor


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many ranks, streams a rank and tokens a window; whether all ranks have the ``same`` weights.

    ``apart``: what they multiply by is each rank's own nevertheless, for each drops weights of its own.
    """

    ranks: int
    streams: int
    length: int
    same: bool
    apart: bool = False

    @property
    def groups(self) -> int:
        """How many sets of weights are read."""
        return 1 if self.same and not self.apart else self.ranks

    @property
    def columns(self) -> int:
        """How many streams read the same weights."""
        return self.streams * self.ranks // self.groups


@dataclass
class TextTogether:
    """The models of all ranks; ``run`` leaves in ``losses`` and ``grads`` what each rank's window gives.

    ``tokens`` and ``targets`` [ranks, streams, length] are filled before; ``state`` is what the window before left.
    ``grads`` has by name of the parameter a tensor [ranks, *shape].
    """

    models: Sequence[LSTM | AWD]
    size: Size
    tokens: Tensor = field(init=False)
    targets: Tensor = field(init=False)
    losses: Tensor = field(init=False)
    grads: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        size, first = self.size, self.models[0]
        device = first.embedding.weight.device
        shape = (size.ranks, size.streams, size.length)
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.targets = torch.zeros_like(self.tokens)
        self.losses = first.embedding.weight.new_zeros(size.ranks)
        self.grads = {n: p.new_zeros(size.ranks, *p.shape) for n, p in first.named_parameters()}
        # Embedding, then layers: a recurrent matrix has a column for each output.
        self._widths = [first.embedding.weight.shape[1]]
        self._widths += [int(layer.get_parameter("weight_hh_l0").shape[1]) for layer in first.lstm]
        self._state = [self.losses.new_zeros(2, size.groups, size.columns, width) for width in self._widths[1:]]
        # One set is read where it lies; several lie side by side.
        self._held = {} if size.same else parameters_side_by_side(self.models)

    @staticmethod
    def of(models: Sequence[LSTM | AWD], tokens: Tensor, *, same: bool) -> TextTogether:
        """Return one for windows like the ``tokens`` of a rank."""
        streams, length = tokens.shape
        apart = isinstance(models[0], AWD)
        return TextTogether(models, Size(ranks=len(models), streams=streams, length=length, same=same, apart=apart))

    def fill(self, batches: Sequence[Window]) -> None:
        """Take the windows of all ranks, whose walks begin together."""
        if batches[0].first:
            self.forget()
        torch.stack([batch.tokens for batch in batches], out=self.tokens)
        torch.stack([batch.targets for batch in batches], out=self.targets)

    def forget(self) -> None:
        """Begin anew: what windows before have left is forgotten."""
        for state in self._state:
            state.zero_()

    @torch.no_grad()
    def run(self) -> None:
        """Compute the losses and gradients of the windows that lie in ``tokens`` and ``targets``."""
        weights, model = self._weights(), self.models[0]
        tokens, targets = self._by_group(self.tokens), self._by_group(self.targets)
        drops = drawn(model, tokens, self._widths, like=self.losses)
        signal = dropped(self._looked_up(weights["embedding.weight"], tokens), drops.signals[0])
        kept: list[_Layer] = []
        for number, state in enumerate(self._state):
            into, recurrent, bias = _of_layer(weights, number)
            kept.append(_read(signal, state, into, dropped(recurrent, drops.weights[number]), bias))
            signal = dropped(kept[-1].outputs[:, 1:], drops.signals[number + 1])
        back = self._softmax(signal, targets, weights["out.weight"], weights["out.bias"])
        asked = penalised_(self.losses, back, kept[-1].outputs[:, 1:], signal, model)
        for number in reversed(range(len(kept))):
            above, left = dropped(back, drops.signals[number + 1]), drops.weights[number]
            if asked is not None and number + 1 == len(kept):
                above = above + asked
            back = self._layer_back(kept[number], above, number, weights)
            if left is not None:
                self.grads[f"lstm.{number}.weight_hh_l0"].mul_(left)
        self._embedding_back(dropped(back, drops.signals[0]), tokens)

    def _softmax(self, signal: Tensor, targets: Tensor, out: Tensor, bias: Tensor) -> Tensor:
        """Leave losses and the softmax's gradients, rank by rank: the mean is over a rank's own window.

        Return the gradient of the signal.
        """
        seen, right = self._by_rank(signal), self._by_rank(targets.unsqueeze(-1)).squeeze(-1)
        scores = torch.baddbmm(bias.unsqueeze(1), self._side_by_side(signal), out.transpose(1, 2))
        scores = functional.log_softmax(self._by_rank(scores.view(*signal.shape[:3], -1)), dim=-1)
        self.losses.copy_(-scores.gather(-1, right.unsqueeze(-1)).flatten(1).mean(1))
        error = scores.exp_().sub_(_one_at(right, scores.shape[2], like=scores))
        error.div_(right.shape[1])
        own = self.grads["out.weight" if "out.weight" in self.grads else "embedding.weight"]
        torch.bmm(error.transpose(1, 2), seen, out=own)
        self.grads["out.bias"].copy_(error.sum(1))
        return torch.bmm(self._grouped(error), out).view_as(signal)

    def _looked_up(self, table: Tensor, tokens: Tensor) -> Tensor:
        if not self._held:
            return functional.embedding(tokens, table[0])
        rows = torch.arange(table.shape[0], device=tokens.device).view(-1, 1, 1) * table.shape[1]
        return functional.embedding(tokens + rows, table.flatten(0, 1))

    def _layer_back(self, layer: _Layer, above: Tensor, number: int, weights: dict[str, Tensor]) -> Tensor:
        """Leave a layer's gradients; return that of what it read."""
        into, _, _ = _of_layer(weights, number)
        gates, cells, recurrent = layer.gates, layer.cells, layer.recurrent
        carried = torch.zeros_like(cells[:, 0], memory_format=torch.contiguous_format)
        for t in reversed(range(self.size.length)):
            later = gates[:, t + 1] if t + 1 < self.size.length else None
            backward_(gates[:, t], later, recurrent, cells[:, t], cells[:, t + 1], above[:, t], carried)
        mine = self._by_rank(gates)
        name = f"lstm.{number}."
        torch.bmm(mine.transpose(1, 2), self._by_rank(layer.inputs), out=self.grads[f"{name}weight_ih_l0"])
        torch.bmm(mine.transpose(1, 2), self._by_rank(layer.outputs[:, :-1]), out=self.grads[f"{name}weight_hh_l0"])
        summed = mine.sum(1)
        for bias in ("bias_ih_l0", "bias_hh_l0"):
            self.grads[name + bias].copy_(summed)
        return torch.bmm(self._side_by_side(gates), into).view_as(layer.inputs)

    def _embedding_back(self, error: Tensor, tokens: Tensor) -> None:
        grad, mine = self.grads["embedding.weight"], self._by_rank(tokens.unsqueeze(-1)).squeeze(-1)
        # As a product: to add rows up where they belong takes another order every time, or a sort.
        seen, back = _one_at(mine, grad.shape[1], like=grad).transpose(1, 2), self._by_rank(error)
        if "out.weight" in self.grads:
            torch.bmm(seen, back, out=grad)
        else:
            grad.baddbmm_(seen, back)

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights by name, a row a group."""
        groups = self.size.groups
        held = self._held or {n: p.expand(groups, *p.shape) for n, p in self.models[0].named_parameters()}
        return held if "out.weight" in held else held | {"out.weight": held["embedding.weight"]}

    def _by_group(self, numbers: Tensor) -> Tensor:
        """Lay [ranks, streams, length] out by group, time and stream."""
        size = self.size
        return numbers.reshape(size.groups, size.columns, size.length).transpose(1, 2).contiguous()

    def _by_rank(self, signal: Tensor) -> Tensor:
        """Lay [groups, length, columns, width] out by rank, and a rank's tokens one behind the other."""
        size = self.size
        each = signal.reshape(size.groups, signal.shape[1], size.ranks // size.groups, size.streams, -1)
        return each.transpose(1, 2).reshape(size.ranks, signal.shape[1] * size.streams, -1)

    def _grouped(self, each: Tensor) -> Tensor:
        """Undo ``_by_rank``, for a product with weights."""
        size = self.size
        by_rank = each.view(size.groups, size.ranks // size.groups, size.length, size.streams, -1)
        return by_rank.transpose(1, 2).reshape(size.groups, size.length * size.columns, -1)

    def _side_by_side(self, signal: Tensor) -> Tensor:
        return signal.reshape(self.size.groups, self.size.length * self.size.columns, -1)


def _of_layer(weights: dict[str, Tensor], number: int) -> list[Tensor]:
    name = f"lstm.{number}."
    bias = weights[f"{name}bias_ih_l0"] + weights[f"{name}bias_hh_l0"]
    return [weights[f"{name}weight_ih_l0"], weights[f"{name}weight_hh_l0"], bias]


def _read(signal: Tensor, state: Tensor, into: Tensor, recurrent: Tensor, bias: Tensor) -> _Layer:
    """Read a window on from the state, which is left as the window leaves it."""
    groups, length, columns, _ = signal.shape
    gates = torch.baddbmm(bias.unsqueeze(1), signal.reshape(groups, length * columns, -1), into.transpose(1, 2))
    gates = gates.view(groups, length, columns, -1)
    outputs = signal.new_empty(groups, length + 1, columns, recurrent.shape[2])
    cells = torch.empty_like(outputs)
    outputs[:, 0], cells[:, 0] = state[0], state[1]
    for t in range(length):
        forward_(gates[:, t], outputs[:, t], recurrent, cells[:, t], cells[:, t + 1], outputs[:, t + 1])
    state[0], state[1] = outputs[:, -1], cells[:, -1]
    return _Layer(inputs=signal, gates=gates, outputs=outputs, cells=cells, recurrent=recurrent)


def _one_at(places: Tensor, number: int, *, like: Tensor) -> Tensor:
    """Return rows of so many zeros with a one at each place."""
    return (torch.arange(number, device=places.device) == places.unsqueeze(-1)).to(like.dtype)

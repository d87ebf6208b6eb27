"""The tensors of models that share a process as rows of common ones: what reads all of them copies none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def parameters_side_by_side(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the parameters by name, a row a model; the models' own become these rows."""
    each = [dict(model.named_parameters()) for model in models]
    common = {name: torch.stack([mine[name] for mine in each]) for name in each[0]}
    for name, rows in common.items():
        for mine, row in zip(each, rows.unbind(), strict=True):
            # The parameter stays the object that optimizers know.
            mine[name].data = row
    return common


def buffers_side_by_side(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the buffers by name, a row a model; the models' own become these rows."""
    common = {}
    for name, _ in list(models[0].named_buffers()):
        rows = torch.stack([model.get_buffer(name) for model in models])
        owner, _, last = name.rpartition(".")
        for model, row in zip(models, rows.unbind(), strict=True):
            module: nn.Module = model.get_submodule(owner)
            setattr(module, last, row)
        common[name] = rows
    return common

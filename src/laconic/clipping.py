"""Clipping of local gradients by norm, before they are accumulated: pure functions, the two conventions named.

A threshold for the *mean* gradient of N ranks is usually known (what ``clip_grad_norm_`` is given). Norms of
independent local gradients are about sqrt(N) times that of their mean, so a rank clips at another number.
Lin et al. (DGC, 2018) state it for gradients that are summed, each already divided by N: thr / sqrt(N). For
gradients that are averaged, as everywhere in laconic, that is sqrt(N) * thr. They are the same rule; using the
first number on the second kind of gradient clips N times too hard.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal, get_args

import torch
from torch import Tensor

from laconic.arguments import check_choice

Convention = Literal["mean", "sum", "local"]
ClipScope = Literal["layer", "model"]


@dataclass(frozen=True, kw_only=True)
class LocalClip:
    """Clip each rank's own gradient to a norm, before anything is accumulated.

    ``norm`` is the threshold as ``clip_grad_norm_`` takes it. ``convention`` says what it is meant for:
    ``mean`` (the averaged gradient: ranks clip at sqrt(N) * norm), ``sum`` (a summed gradient whose local
    parts are already divided by N: ranks clip at norm / sqrt(N)), or ``local`` (this rank's own gradient, as
    it is). With scope ``layer`` every parameter's norm is held below the threshold by itself, while backward
    goes on; with ``model`` the norm is the whole gradient's, and no bucket can be sent before the last one
    is there: exchange and backward no longer overlap.

    >>> LocalClip(norm=0.25).threshold(world_size=4), LocalClip(norm=0.25, convention="sum").threshold(world_size=4)
    (0.5, 0.125)
    """

    norm: float
    convention: Convention = "mean"
    scope: ClipScope = "model"

    def __post_init__(self) -> None:
        number = isinstance(self.norm, int | float) and not isinstance(self.norm, bool)
        if not number or self.norm <= 0 or not isfinite(self.norm):
            raise ValueError(
                f"norm must be a finite number over 0, got {self.norm!r}. For no clipping use clip=None."
            )
        check_choice("convention", self.convention, get_args(Convention))
        check_choice("scope", self.scope, get_args(ClipScope))

    def threshold(self, *, world_size: int) -> float:
        """Return the norm that a rank's own gradient is clipped to."""
        factor = {"mean": sqrt(world_size), "sum": 1 / sqrt(world_size), "local": 1.0}
        return self.norm * factor[self.convention]


def clip_factors(norms: Tensor, threshold: float) -> Tensor:
    """Return what each gradient of such a norm is multiplied by: 1, or threshold / norm where that is less.

    >>> clip_factors(torch.tensor([0.5, 4.0, 0.0]), 1.0)
    tensor([1.0000, 0.2500, 1.0000])
    """
    return torch.where(norms <= threshold, torch.ones_like(norms), threshold / norms)

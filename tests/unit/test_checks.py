"""Memory in update units beside optimizers that remember gradients: warned of, or refused."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.integrations.checks import check_units

PARAMETER = [torch.nn.Parameter(torch.zeros(3))]


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD(PARAMETER, lr=0.1, momentum=0.9), torch.optim.Adam(PARAMETER)],
    ids=["SGD with momentum", "Adam"],
)
def test_update_units_with_an_optimizer_that_remembers_are_warned_of(optimizer):
    with pytest.warns(UserWarning, match="meant for SGD without momentum.*Use memory='gradient'"):
        check_units(laconic.topk_sgd(), optimizer)
    check_units(laconic.topk(), optimizer)


def test_update_units_with_plain_sgd_pass_in_silence():
    check_units(laconic.topk_sgd(), torch.optim.SGD(PARAMETER, lr=0.1))


def test_update_units_without_a_learning_rate_are_refused():
    optimizer = torch.optim.SGD(PARAMETER, lr=0.1)
    del optimizer.param_groups[0]["lr"]
    with pytest.raises(ValueError, match="needs the optimizer's learning rate"):
        check_units(laconic.topk_sgd(), optimizer)
    check_units(laconic.topk(), optimizer)

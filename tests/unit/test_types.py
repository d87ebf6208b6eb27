"""Plans and payloads: what follows from what they hold."""

from __future__ import annotations

import torch

from contracts.vectors import segments_of
from laconic.memory import accumulation_dtype
from laconic.types import Payload, Plan


def test_a_payload_counts_known_and_chosen_entries():
    chosen = torch.tensor([5])
    payload = Payload(known=torch.ones(2), positions=chosen, values=torch.ones(1), wanted=torch.tensor([9]))
    assert payload.count == 3


def test_the_capacity_of_a_plan_is_the_sum_of_its_rooms():
    plan = Plan(known=slice(0, 0), known_sizes=(), choosing=segments_of([4, 9]), rooms=(3, 4))
    assert plan.capacity == 7
    assert Plan(known=slice(0, 2), known_sizes=(2,)).capacity == 0


def test_memory_has_float64_only_where_a_parameter_has():
    assert accumulation_dtype([torch.bfloat16, torch.float16]) == torch.float32
    assert accumulation_dtype([torch.float32, torch.float64]) == torch.float64
    assert accumulation_dtype([]) == torch.float32

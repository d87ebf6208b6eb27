"""``accumulate_`` and ``add_payloads_`` against the formulas of their docstrings, one number at a time."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import DTYPES, dyadic, normal, same_bits, segments_of
from laconic import kernels
from laconic.kernels import Inflow, Places
from laconic.segments import Segment, Segments

HOME = Segments.of(["a", "b", "empty", "c"], [3, 1, 0, 5])
MODES = [(None, False), (0.0, False), (0.9, False), (0.9, True), (1.0, True)]
PLAIN = {"gain": 1.0, "unit": 1.0, "momentum": 0.0, "nesterov": 0.0}
FLOWS = {
    "a": {"gain": 0.5, "unit": 3.0},
    "b": {"gain": -3.0},
    "empty": {"gain": 7.0},
    "c": {"gain": 0.1, "unit": 0.25},
}


def _inflow(flows: list[dict[str, float]], dtype: torch.dtype) -> Inflow:
    """Numbers a segment as the tensors that the kernel takes."""
    return Inflow(**{key: torch.tensor([{**PLAIN, **f}[key] for f in flows], dtype=dtype) for key in PLAIN})


def _accumulate(x: torch.Tensor, flows: list[dict[str, float]], layout: Segments, home: Segments, **vectors):
    """One pass over x in place; also return the velocity that it proposes."""
    at = Segments(tuple(home[name] for name in layout.names))
    places = Places(grad=layout, x=layout, home=at)
    proposed = None if vectors.get("velocity") is None else torch.full_like(x, math.nan)
    return kernels.accumulate_(x, x, _inflow(flows, x.dtype), places, proposed=proposed, **vectors), proposed


def _naive(g: float, owed: float, u: float, flow: dict[str, float]) -> tuple[float, float, float]:
    """One entry: what x becomes, what the velocity becomes, and what the step adds."""
    flow = {**PLAIN, **flow}
    g = flow["gain"] * g
    u = flow["momentum"] * u + g
    added = flow["unit"] * (g + flow["momentum"] * u if flow["nesterov"] else u)
    return added + owed, u, added


def _spread(home_flat: torch.Tensor, layout: Segments) -> torch.Tensor:
    """The entries of a vector in the model's order, laid out as ``layout`` says."""
    pieces = [home_flat[HOME[s.name].offset : HOME[s.name].offset + s.size] for s in layout]
    return torch.cat([torch.empty(0, dtype=home_flat.dtype), *pieces])


def _flow(x: torch.Tensor, owed: torch.Tensor | None = None, sizes: list[int] | None = None, **flow):
    """One pass with the same inflow for every segment, at home in the order of the vector."""
    layout = segments_of(sizes or [x.numel()])
    return _accumulate(x, [flow] * len(layout), layout, layout, owed=owed)[0]


@pytest.mark.parametrize(("momentum", "nesterov"), MODES)
@pytest.mark.parametrize("names", [["a", "b", "empty", "c"], ["c", "a"], ["b", "empty"], ["empty"]], ids=str)
@settings(max_examples=10)
@given(seed=st.integers(0, 50), owes=st.booleans())
def test_it_is_the_formula_entry_by_entry_in_any_layout(momentum, nesterov, names, seed, owes):
    layout = Segments.of(names, [HOME[n].size for n in names])
    flows = {n: {**FLOWS[n], "momentum": momentum or 0.0, "nesterov": float(nesterov)} for n in names}
    grads, owed, velocity = (normal(HOME.numel, 3 * seed + i, torch.float64) for i in range(3))
    x, before = _spread(grads, layout), (owed.clone(), velocity.clone())
    done, proposed = _accumulate(
        x,
        list(flows.values()),
        layout,
        HOME,
        owed=owed if owes else None,
        velocity=None if momentum is None else velocity,
    )
    expected_x, expected_u, added = (torch.zeros(HOME.numel, dtype=torch.float64) for _ in range(3))
    for name in names:
        for i in range(HOME[name].offset, HOME[name].offset + HOME[name].size):
            entry = (float(grads[i]), float(owed[i]) if owes else 0.0, float(velocity[i]))
            expected_x[i], expected_u[i], added[i] = _naive(*entry, flows[name])
    torch.testing.assert_close(x, _spread(expected_x, layout), rtol=1e-14, atol=1e-14)
    norms = [float(torch.linalg.vector_norm(view)) for view in layout.views(_spread(added, layout))]
    largest = [float(view.abs().max()) if view.numel() else 0.0 for view in layout.views(x)]
    assert done.norms.tolist() == pytest.approx(norms, rel=1e-12)
    assert done.largest.tolist() == largest
    if momentum is None:
        assert proposed is None
    else:
        torch.testing.assert_close(proposed, _spread(expected_u, layout), rtol=1e-14, atol=1e-14)
    assert same_bits(owed, before[0])
    assert same_bits(velocity, before[1])


def test_without_momentum_a_velocity_is_the_gradient():
    layout, x = segments_of([6]), normal(6, 1)
    _, proposed = _accumulate(x, [{}], layout, layout, owed=None, velocity=normal(6, 2))
    assert same_bits(proposed, normal(6, 1))
    assert same_bits(x, normal(6, 1))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_over_steps_is_sgd_with_momentum(nesterov):
    layout, flow = segments_of([6]), {"momentum": 0.5, "nesterov": float(nesterov)}
    parameter = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5, nesterov=nesterov)
    total, u = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for seed in range(5):
        x = dyadic(6, seed)
        parameter.grad = x.clone()
        optimizer.step()
        _, u = _accumulate(x, [flow], layout, layout, owed=None, velocity=u)
        total += x
        assert torch.equal(u, optimizer.state[parameter]["momentum_buffer"])
    torch.testing.assert_close(total, -parameter.detach(), rtol=1e-12, atol=0)


@given(st.lists(st.integers(0, 70), min_size=1, max_size=3), st.data())
def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(sizes, data):
    layout, numel = segments_of(sizes), sum(sizes)
    x = normal(numel, 1)
    bad = data.draw(st.integers(0, numel - 1)) if numel else None
    if bad is not None:
        x[bad] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    done = _flow(x, torch.zeros(numel), sizes)
    assert bool(done.finite()) is (bad is None)
    seen = torch.isfinite(done.largest).tolist()
    assert seen == [bad is None or not s.offset <= bad < s.offset + s.size for s in layout]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("flow", [{"gain": 0.0}, {"unit": 0.0}], ids=str)
def test_a_bad_number_is_seen_under_a_factor_of_zero(value, flow):
    assert not _flow(torch.tensor([1.0, value, 2.0]), torch.zeros(3), **flow).finite()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_numbers_are_finite_until_their_norm_overflows(dtype):
    """The norm becomes a deviation that is blended into later ones: an infinity would stay in it for ever."""
    root = math.sqrt(torch.finfo(dtype).max)
    x = torch.tensor([root / 4, -root / 4, 0.0, root / 4], dtype=dtype)
    assert _flow(x, torch.full((4,), root, dtype=dtype)).finite()
    x = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    done = _flow(x, torch.zeros(4, dtype=dtype))
    assert bool(torch.isfinite(done.largest).all())
    assert not done.finite()


def test_one_segment_whose_norm_overflows_is_enough():
    x = torch.tensor([1.0, 3e38, 3e38, 1.0])
    done = _flow(x, torch.zeros(4), [1, 2, 1])
    assert torch.isfinite(done.norms).tolist() == [True, False, True]
    assert not done.finite()


def test_norms_are_of_what_a_step_adds_and_the_largest_is_of_what_is_then_owed():
    x = torch.tensor([3.0, -4.0, 1.0, 2.0, -2.0])
    done = _flow(x, torch.ones(5), [2, 0, 3], gain=0.5, unit=20.0)
    assert done.norms.tolist() == pytest.approx([50.0, 0.0, 30.0])
    assert done.largest.tolist() == [39.0, 0.0, 21.0]


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_sum_that_overflows_is_seen(nesterov):
    layout, large = segments_of([3]), torch.tensor([0.0, 3e38, 0.0])
    assert not _flow(large.clone(), large).finite()
    assert not _flow(large.clone(), torch.zeros(3), unit=2.0).finite()
    flow = {"momentum": 1.0, "nesterov": float(nesterov)}
    done, _ = _accumulate(large.clone(), [flow], layout, layout, owed=None, velocity=large)
    assert not done.finite()


@given(st.lists(st.integers(0, 9), max_size=4))
def test_segment_norms_and_what_is_known_of_a_vector(sizes):
    x, layout = normal(sum(sizes), 3, torch.float64), segments_of(sizes)
    norms = [math.sqrt(sum(v * v for v in view.tolist())) for view in layout.views(x)]
    assert kernels.segment_norms(x, layout).tolist() == pytest.approx(norms)
    fresh = kernels.fresh_of(x, layout)
    roots = [math.sqrt(max(1, size)) for size in sizes]
    assert fresh.deviation.tolist() == pytest.approx([n / r for n, r in zip(norms, roots, strict=True)])
    assert fresh.largest.tolist() == [max((abs(v) for v in view.tolist()), default=0.0) for view in layout.views(x)]
    assert not fresh.running.any()
    assert (fresh.running.shape, float(fresh.overall), fresh.before) == (fresh.deviation.shape, 0.0, None)


@given(st.integers(0, 70), st.data())
def test_all_finite_sees_the_one_that_is_not(numel, data):
    x = normal(numel, 1) * 1e30
    assert kernels.all_finite(x)
    if numel:
        x[data.draw(st.integers(0, numel - 1))] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
        assert not kernels.all_finite(x)


@pytest.mark.parametrize("order", list(itertools.permutations([1e16, 1.0, -1e16])), ids=str)
def test_payloads_are_added_in_the_order_of_ranks(order):
    out = torch.tensor([0.5, 7.0], dtype=torch.float64)
    at = torch.tensor([0])
    kernels.add_payloads_(out, [at] * 3, [torch.tensor([v], dtype=torch.float64) for v in order])
    assert float(out[0]) == ((0.5 + order[0]) + order[1]) + order[2]
    assert float(out[1]) == 7.0


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 100))
def test_payloads_are_added_entry_by_entry(numel, ranks, seed):
    source = torch.Generator().manual_seed(seed)
    out = normal(numel, seed)
    expected = out.tolist()
    positions, values = [], []
    for _ in range(ranks):
        at = torch.nonzero(torch.rand(numel, generator=source) < 0.5).flatten()
        value = torch.randn(at.numel(), generator=source)
        positions.append(at)
        values.append(value)
        for i, v in zip(at.tolist(), value.tolist(), strict=True):
            expected[i] = float(torch.tensor(expected[i]) + torch.tensor(v))
    kernels.add_payloads_(out, positions, values)
    assert out.tolist() == expected


def test_no_payload_adds_nothing():
    out = torch.ones(3)
    kernels.add_payloads_(out, [torch.empty(0, dtype=torch.int64)], [torch.empty(0)])
    kernels.add_payloads_(out, [], [])
    assert out.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("module", [kernels, kernels.reference], ids=lambda m: m.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [[3, 0, 1, 70_000], [200_001], []], ids=str)
def test_what_is_stored_lies_at_home_and_nowhere_else(module, dtype, sizes):
    """A gap of three before each segment in x, of two behind each at home: what lies in the gaps stays."""
    names = [str(i) for i in range(len(sizes))]
    here, home, at, back = [], [], 0, 0
    for name, size in zip(names, sizes, strict=True):
        here.append(Segment(name=name, offset=at + 3, size=size))
        at += size + 3
    for name, size in reversed(list(zip(names, sizes, strict=True))):
        home.insert(0, Segment(name=name, offset=back, size=size))
        back += size + 2
    x, owed = normal(at, 1, torch.float32).to(dtype), normal(back, 2, torch.float32).to(dtype)
    expected_x, expected = x.clone(), owed.clone()
    for a, b in zip(here, home, strict=True):
        expected[b.offset : b.offset + b.size] = x[a.offset : a.offset + a.size]
        expected_x[a.offset : a.offset + a.size] = 0
    places = Places(grad=Segments(tuple(here)), x=Segments(tuple(here)), home=Segments(tuple(home)))
    module.store_(x, owed, places)
    assert torch.equal(x, expected_x)
    assert torch.equal(owed, expected)

"""The fast kernels that add up give the definition's bits: gradients into what is owed, payloads into a mean."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from contracts.twins import (
    ANY,
    BORDERS,
    FAMILIES,
    FINITE,
    FLOATS,
    LARGE,
    NEEDS,
    OFFSETS,
    SEEDS,
    Twin,
    embedded,
    laid_out,
    layers,
    numpy_may_warn,
    same,
    twin_of,
)
from contracts.vectors import normal, segments_of
from laconic.kernels import Accumulated, Inflow, Places, reference
from laconic.segments import Segments

pytestmark = numpy_may_warn
# Squares are summed in another order than the definition's, in float32 for a block of some thousand entries and in
# float64 from there on; the definition's own float32 sum of a long vector is worse. Hence the float64 norm of the
# very same step is what is compared with: a thousand roundings of 6e-8 in a random order, or of 1e-16.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
# A square below the normal numbers is rounded to a multiple of the smallest one.
SMALLEST = {torch.float32: 2.0**-149, torch.float64: 2.0**-1074}
MODES = [(None, 0.0), (0.0, 0.0), (0.9, 0.0), (0.9, 1.0)]
every_memory = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
every_gradient = pytest.mark.parametrize("grads", FLOATS, ids=str)


@pytest.fixture(scope="module", params=NEEDS)
def twin(request) -> Twin:
    return twin_of(request.param)


def _inflow(count: int, dtype: torch.dtype, momentum: float | None, nesterov: float, seed: int) -> Inflow:
    """Numbers a segment that need rounding. Nesterov's form only for every other one."""
    numbers = normal(3 * count, seed).to(dtype).view(3, count)
    return Inflow(
        gain=numbers[0],
        unit=numbers[1],
        momentum=torch.full((count,), momentum or 0.0, dtype=dtype) + numbers[2] / 100 * bool(momentum),
        nesterov=torch.tensor([nesterov * (i % 2) for i in range(count)], dtype=dtype),
    )


def _three_orders(sizes: list[int], gap: int = 0) -> tuple[Places, list[int]]:
    """The same parameters at different places in the gradient, in x and at home; and how long each of them is."""
    count = len(sizes)
    orders = [list(range(count)), list(reversed(range(count))), [*range(1, count), *range(min(1, count))]]
    made = [laid_out(sizes, order, gap) for order in orders]
    return Places(grad=made[0][0], x=made[1][0], home=made[2][0]), [end for _, end in made]


def _check_norms(norms: Tensor, step: Tensor, segments: Segments) -> None:
    """Against the float64 norm of the step itself; where squares overflow, infinity is as right as the number."""
    tolerance, largest = TOLERANCE[step.dtype], torch.finfo(step.dtype).max
    for segment, view, norm in zip(segments, segments.views(step), norms.tolist(), strict=True):
        true = float(torch.linalg.vector_norm(view.double())) if segment.size else 0.0
        if math.isnan(true) or math.isinf(true):
            assert not math.isfinite(norm)
        elif true * true * (1 + tolerance) < largest:
            lost = math.sqrt(segment.size * SMALLEST[step.dtype])
            assert norm == pytest.approx(true, rel=tolerance, abs=lost)
        else:
            assert norm == math.inf or norm == pytest.approx(true, rel=tolerance)


def _check(
    twin: Twin,
    places: Places,
    ends: list[int],
    vectors: dict[str, Tensor | None],
    inflow: Inflow,
    offset: int = 0,
    in_place: bool = False,
) -> Accumulated:
    """Run the twin and the definition on copies of the vectors inside larger storages; compare all of these."""
    dtype = inflow.gain.dtype
    fill = torch.zeros(ends[1], dtype=dtype)
    copies = {**vectors, "x": vectors["grad"] if in_place else fill}
    if vectors.get("velocity") is not None:
        copies["proposed"] = fill

    def run(module, device: str, owes: bool = True) -> tuple[Accumulated, dict[str, Tensor], Tensor]:
        made = {key: embedded(v, offset, device) for key, v in copies.items() if v is not None}
        given = {key: made[key][1] for key in ("owed", "velocity", "proposed") if key in made}
        x = made["x"][1]
        grad = x if in_place else made["grad"][1]
        flow = Inflow(**{key: getattr(inflow, key).to(device) for key in inflow.__dataclass_fields__})
        done = module.accumulate_(
            x, grad, flow, places, **{"owed": None, **given, **({} if owes else {"owed": None})}
        )
        return done, {key: around.cpu() for key, (around, _) in made.items()}, x.cpu()

    expected, mine, _ = run(reference, "cpu")
    done, theirs, _ = run(twin.module, twin.device)
    assert mine.keys() == theirs.keys()
    for key in mine:
        assert same(theirs[key], mine[key]), key
    # The sign of a magnitude of zero is no one's business.
    assert torch.equal(done.largest.cpu().nan_to_num(-1.0), expected.largest.nan_to_num(-1.0))
    assert done.largest.dtype == done.norms.dtype == dtype
    _check_norms(done.norms.cpu(), run(reference, "cpu", owes=False)[2], places.x)
    return done


def _vectors(twin: Twin, family: str, ends: list[int], grads: torch.dtype, dtype: torch.dtype, seed: int, **has):
    """A gradient, what is owed and a velocity, those that are there."""
    return {
        "grad": twin.draw(family, ends[0], seed, grads),
        "owed": twin.draw(family, ends[2], seed + 1, dtype) if has["owes"] else None,
        "velocity": twin.draw(family, ends[2], seed + 2, dtype) if has["moves"] else None,
    }


@every_gradient
@every_memory
def test_what_is_owed_is_the_definitions_wherever_parameters_lie(twin, dtype, grads):
    def check(sizes, gap, family, seed, offset, owes, mode):
        places, ends = _three_orders(sizes, gap)
        vectors = _vectors(twin, family, ends, grads, dtype, seed, owes=owes, moves=mode[0] is not None)
        _check(twin, places, ends, vectors, _inflow(len(sizes), dtype, *mode, seed), offset)

    twin.holds(check, 40, **ANY, owes=st.booleans(), mode=st.sampled_from(MODES))


@every_memory
def test_a_gradient_in_x_itself_is_read_before_it_is_written_over(twin, dtype):
    def check(sizes, family, seed, offset, owes, mode):
        layout, home = segments_of(sizes), laid_out(sizes, list(reversed(range(len(sizes)))))[0]
        places, ends = Places(grad=layout, x=layout, home=home), [sum(sizes)] * 3
        vectors = _vectors(twin, family, ends, dtype, dtype, seed, owes=owes, moves=mode[0] is not None)
        _check(twin, places, ends, vectors, _inflow(len(sizes), dtype, *mode, seed), offset, in_place=True)

    twin.holds(
        check,
        40,
        sizes=layers(),
        family=st.sampled_from(FAMILIES),
        seed=SEEDS,
        offset=OFFSETS,
        owes=st.booleans(),
        mode=st.sampled_from(MODES),
    )


@pytest.mark.parametrize("sizes", [*BORDERS, *LARGE], ids=str)
def test_at_the_borders_of_blocks_and_chunks_what_is_owed_is_the_definitions(twin, sizes):
    places, ends = _three_orders(sizes)
    draws = list(enumerate(product(FINITE, [torch.float32, torch.float64])))
    for i, (family, dtype) in draws[sum(sizes) % 7 :: 7] if twin.slow else draws:
        vectors = _vectors(twin, family, ends, FLOATS[i % 4], dtype, i, owes=i % 3 > 0, moves=i % 4 > 0)
        _check(twin, places, ends, vectors, _inflow(len(sizes), dtype, *MODES[i % 4], i), offset=i % 4)


@every_memory
def test_a_norm_that_overflows_or_is_no_number_is_seen(twin, dtype):
    large = torch.finfo(dtype).max / 2
    for bad in (large, math.inf, -math.inf, math.nan):
        grad = normal(70, 1).to(dtype)
        grad[[3, 41, 42]] = torch.tensor(bad, dtype=dtype)
        layout = segments_of([10, 25, 35])
        places = Places(grad=layout, x=layout, home=layout)
        vectors = {"grad": grad, "owed": normal(70, 2).to(dtype), "velocity": None}
        done = _check(twin, places, [70] * 3, vectors, Inflow.plain(3, like=grad))
        assert torch.isfinite(done.norms).tolist() == [False, True, False]


def test_many_segments_are_each_scaled_by_their_own(twin):
    sizes = [i * 5 % 7 for i in range(40 if twin.slow else 5000)]
    places, ends = _three_orders(sizes, gap=1)
    vectors = _vectors(twin, "normal", ends, torch.float32, torch.float32, 1, owes=True, moves=True)
    _check(twin, places, ends, vectors, _inflow(len(sizes), torch.float32, 0.9, 1.0, 3))


@every_memory
def test_a_velocity_that_has_no_place_to_go_is_left_out_as_the_definition_does(twin, dtype):
    layout = segments_of([40, 30])
    places, inflow = Places(grad=layout, x=layout, home=layout), _inflow(2, dtype, 0.9, 0.0, 1)
    results = []
    for module, device in ((reference, "cpu"), (twin.module, twin.device)):
        around, x = embedded(torch.zeros(70, dtype=dtype), 1, device)
        grad, velocity = normal(70, 1).to(x), normal(70, 2).to(x)
        flow = Inflow(**{key: getattr(inflow, key).to(device) for key in inflow.__dataclass_fields__})
        module.accumulate_(x, grad, flow, places, owed=None, velocity=velocity)
        results.append(around.cpu())
    assert same(*results)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_stored_is_the_definitions_wherever_parameters_lie(twin, dtype):
    def check(sizes, gap, family, seed, offset):
        places, ends = _three_orders(sizes, gap)
        results = []
        for module, device in ((reference, "cpu"), (twin.module, twin.device)):
            around, x = embedded(twin.draw(family, ends[1], seed, dtype), offset, device)
            beside, owed = embedded(twin.draw(family, ends[2], seed + 1, dtype), offset, device)
            module.store_(x, owed, places)
            results.append(torch.cat([around, beside]).cpu())
        assert same(*results)

    twin.holds(check, 40, **ANY)


@pytest.mark.parametrize("sizes", [*BORDERS, *LARGE], ids=str)
def test_at_the_borders_of_blocks_the_definitions_entries_are_stored(twin, sizes):
    places, ends = _three_orders(sizes)
    results = []
    for module, device in ((reference, "cpu"), (twin.module, twin.device)):
        x, owed = (twin.draw("normal", end, i, torch.float32).to(device) for i, end in enumerate(ends[1:]))
        module.store_(x, owed, places)
        results.append(torch.cat([x, owed]).cpu())
    assert same(*results)


def _check_added(twin: Twin, out: Tensor, positions: list[Tensor], values: list[Tensor], scale: float, offset: int):
    around, mine = embedded(out, offset)
    beside, theirs = embedded(out, offset, twin.device)
    reference.add_payloads_(mine, positions, values, scale=scale)
    there = [p.to(twin.device) for p in positions], [v.to(twin.device) for v in values]
    twin.module.add_payloads_(theirs, *there, scale=scale)
    got = beside.cpu()
    if not twin.trims:
        # This twin adds no zeros, so that unused places may all name one entry: -0.0 + 0.0 stays -0.0.
        got, around = got + 0.0, around + 0.0
    assert same(got, around)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_payloads_are_added_as_the_definition_does(twin, dtype):
    def check(numel, ranks, family, seed, offset, scale, density, index, padding):
        if twin.slow and dtype == torch.bfloat16:
            # Triton's interpreter cuts off where it should round to bfloat16: only sums that are exact.
            family, scale = "few", 0.25
        source, positions, values = torch.Generator().manual_seed(seed), [], []
        for rank in range(ranks):
            at = torch.nonzero(torch.rand(numel, generator=source) < density).flatten()
            value = twin.draw(family, at.numel(), seed + rank, dtype)
            # Unused room at the end: zeros that all name the first entry.
            positions.append(torch.cat([at, at.new_zeros(padding if numel else 0)]).to(index))
            values.append(torch.cat([value, value.new_zeros(positions[-1].numel() - at.numel())]))
        _check_added(twin, twin.draw(family, numel, seed + 99, dtype), positions, values, scale, offset)

    twin.holds(
        check,
        60,
        numel=st.one_of(st.integers(0, 300), st.sampled_from([4095, 4096, 4097, 9000])),
        ranks=st.integers(0, 4),
        family=st.sampled_from(FAMILIES),
        seed=SEEDS,
        offset=OFFSETS,
        scale=st.sampled_from([1.0, 0.25, 1 / 3, -1.0, 1e-3]),
        density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        index=st.sampled_from([torch.int64, torch.int32]),
        padding=st.sampled_from([0, 3]),
    )

"""The twins that sit the exam, the vectors they are asked about, and how their answers are compared."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.kernels import Taken, reference
from laconic.segments import Segment, Segments

NEEDS = {"cpu": "numba", "cuda": "triton"}
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_EDGE = 4
SEEDS, OFFSETS = st.integers(0, 10**6), st.sampled_from([0, 1, 3])
_GUARD = 77.0
# The interpreter computes with NumPy, which speaks up where numbers overflow or become none: here that is wanted.
numpy_may_warn = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@dataclass(frozen=True)
class Twin:
    """Fast kernels and the device they are tried on. ``slow``: interpreted, each block costs milliseconds."""

    module: ModuleType
    device: str
    slow: bool

    @property
    def trims(self) -> bool:
        """Whether what is taken comes without unused room."""
        return self.module.__name__.endswith(".cpu")

    def holds(self, check: Callable[..., None], examples: int, **strategies: st.SearchStrategy) -> None:
        """Try a check on many draws. Where each is slow on a tenth as many, and no failure is made smaller."""
        if self.slow:
            plan = settings(max_examples=max(3, examples // 10), phases=[Phase.generate])
        else:
            plan = settings(max_examples=examples)
        plan(given(**strategies)(check))()

    def draw(self, family: str, numel: int, seed: int, dtype: torch.dtype) -> Tensor:
        """A vector of a family. Triton's interpreter reads bfloat16's denormals wrongly: there they are zero."""
        x = vector(family, numel, seed, dtype)
        flush = self.slow and dtype == torch.bfloat16
        return torch.where(x.abs() < torch.finfo(dtype).smallest_normal, 0, x) if flush else x


def twin_of(name: str) -> Twin:
    """Return a twin, or skip where its compiler is not there. Without a GPU Triton's runs in its interpreter."""
    pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    on_cuda = name == "cuda" and torch.cuda.is_available()
    module = importlib.import_module(f"laconic.kernels.{name}")
    return Twin(module, device="cuda" if on_cuda else "cpu", slow=name == "cuda" and not on_cuda)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits; NaN is NaN, whatever its bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = _BITS[a.element_size()]
    return bool(((a.contiguous().view(bits) == b.contiguous().view(bits)) | ((a != a) & (b != b))).all())


def embedded(x: Tensor, offset: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """A copy of x inside a larger storage, from ``offset`` on: the storage, and x in it."""
    around = x.new_full((offset + x.numel() + _EDGE,), _GUARD)
    around[offset : offset + x.numel()] = x
    around = around.to(device)
    return around, around[offset : offset + x.numel()]


def check_take(twin: Twin, x: Tensor, take: Callable[[ModuleType, Tensor], Taken], offset: int = 0) -> Taken:
    """Take by the twin and by the definition; all they did must be the same, and nothing beside x be touched."""
    around, mine = embedded(x, offset)
    beside, theirs = embedded(x, offset, twin.device)
    expected, got = take(reference, mine), take(twin.module, theirs)
    assert torch.equal(got.wanted.cpu(), expected.wanted)
    count = expected.positions.numel()
    if twin.trims:
        assert got.positions.numel() == got.values.numel() == count
    assert got.positions.dtype == got.wanted.dtype == torch.int64
    assert torch.equal(got.positions[:count].cpu(), expected.positions)
    assert same(got.values[:count].cpu(), expected.values)
    assert not got.positions[count:].any()
    assert not got.values[count:].any()
    assert same(beside.cpu(), around)
    return got


def laid_out(sizes: Sequence[int], order: Sequence[int] | None = None, gap: int = 0) -> tuple[Segments, int]:
    """Segments of these sizes, one behind the other in ``order`` with gaps between; and where the last one ends."""
    offsets, end = [0] * len(sizes), 0
    for i in order if order is not None else range(len(sizes)):
        offsets[i], end = end, end + sizes[i] + gap
    items = [Segment(name=f"p{i}", offset=o, size=n) for i, (o, n) in enumerate(zip(offsets, sizes, strict=True))]
    return Segments(tuple(items)), end


def _signs(numel: int, source: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (numel,), generator=source).double() * 2 - 1


def _equal(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _signs(numel, source) * 1.5


def _zero(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    return _signs(numel, source) * 0.0


def _few(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randint(-2, 3, (numel,), generator=source).double() / 2


def _normal(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(numel, generator=source, dtype=torch.float64)


def _wide(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    """All the exponents that the dtype has."""
    low, high = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    low, high = torch.tensor([low / 4, high / 2], dtype=torch.float64).log2().tolist()
    powers = torch.rand(numel, generator=source, dtype=torch.float64) * (high - low) + low
    return _signs(numel, source) * torch.exp2(powers)


def _denormal(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    finfo = torch.finfo(dtype)
    return torch.randint(-5, 6, (numel,), generator=source).double() * (finfo.smallest_normal * finfo.eps)


def _infinite(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    x = _normal(numel, source, dtype)
    return torch.where(torch.rand(numel, generator=source) < 0.05, x.sign() * torch.inf, x)


def _sparse(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Exactly a sixteenth are not zero."""
    x = torch.zeros(numel, dtype=torch.float64)
    x[torch.randperm(numel, generator=source)[: numel // 16]] = 0.25
    return x * _signs(numel, source)


def _clustered(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    """What is large lies close together: more of it in one block than its share."""
    x, middle = _normal(numel, source, dtype), numel // 3
    x[middle : middle + 500] *= 50
    return x


def _striped(numel: int, source: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Runs of large entries where a sample would look, small ones where it would not."""
    x = _normal(numel, source, dtype)
    return torch.where(torch.arange(numel) // 64 % 2 == 0, x * 50, x)


_FAMILIES = {
    "normal": _normal,
    "equal": _equal,
    "zero": _zero,
    "few": _few,
    "wide": _wide,
    "denormal": _denormal,
    "infinite": _infinite,
    "sparse": _sparse,
    "clustered": _clustered,
    "striped": _striped,
}
FAMILIES = list(_FAMILIES)
FINITE = [name for name in FAMILIES if name != "infinite"]


def vector(family: str, numel: int, seed: int, dtype: torch.dtype) -> Tensor:
    """A seeded draw of one family of values."""
    return _FAMILIES[family](numel, torch.Generator().manual_seed(seed), dtype).to(dtype)


def layers(most: int = 300) -> st.SearchStrategy[list[int]]:
    """Sizes of a few segments: empty ones, single entries, and around what the loops look at together."""
    borders = [0, 1, 2, 63, 64, 65, 255, 256, 257]
    return st.lists(st.one_of(st.sampled_from(borders), st.integers(0, most)), min_size=0, max_size=4)


# What a draw may be of: some segments with gaps between, values of a family, in a storage that begins before them.
ANY: dict[str, st.SearchStrategy] = {
    "sizes": layers(),
    "gap": st.integers(0, 2),
    "family": st.sampled_from(FAMILIES),
    "seed": SEEDS,
    "offset": OFFSETS,
}
# Around the Triton twin's block of 8192, which is its sample too, and the Numba twin's blocks of 1024.
BORDERS = [[1], [1023], [1025], [4095, 1], [4096], [4097, 0, 3], [8191], [8192, 5], [8193]]
# Around the Numba twin's chunk of 65536 and the Triton twin's group of 131072.
LARGE = [[65535], [65536, 3], [65537], [3, 131_073, 17], [70_000, 0, 1, 200_001]]

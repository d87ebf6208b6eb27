"""What is made once must be what would be made anew, and must not outlive what it was made of."""

import gc
import weakref

import pytest
import torch

from laconic.intake import Intake
from laconic.kernels import copies
from laconic.memory import Memory, lie_alike
from laconic.methods import topk
from laconic.segments import Segments
from laconic.types import Momentum

CPU, META = torch.device("cpu"), torch.device("meta")
MODEL = Segments.of(["a", "b", "c"], [2, 0, 3])


def test_numbers_and_ends_are_those_asked_for():
    assert copies.numbers_on(CPU, (3, 0, 2)).tolist() == [3, 0, 2]
    assert copies.ends_on(CPU, (3, 0, 2)).tolist() == [3, 3, 5]
    assert copies.numbers_on(META, (3, 0, 2)).device == META


@pytest.mark.parametrize("count", [0, 1, 4096, 4097])
def test_zeros_are_as_many_as_asked_for(count):
    zeros = copies.zeros_on(CPU, count)
    assert (zeros.numel(), zeros.dtype, bool(zeros.any())) == (count, torch.uint8, False)


def test_a_copy_is_made_once_and_again_when_the_tensor_was_written_to():
    numbers = torch.tensor([1, 2])
    assert copies.copy_on(CPU, numbers) is numbers
    copy = copies.copy_on(META, numbers)
    assert copies.copy_on(META, numbers) is copy
    assert copies.copy_on(META, torch.tensor([1, 2])) is not copy
    numbers[0] = 5
    assert copies.copy_on(META, numbers) is not copy


def test_copies_for_several_devices_do_not_drive_each_other_out():
    numbers = torch.tensor([1, 2])
    copy = copies.copy_on(META, numbers)
    copies.copy_on(torch.device("meta", 1), numbers)
    assert copies.copy_on(META, numbers) is copy


def test_a_copy_goes_with_the_tensor():
    numbers = torch.tensor([1, 2])
    copy = weakref.ref(copies.copy_on(META, numbers))
    del numbers
    gc.collect()
    assert copy() is None


@pytest.mark.parametrize(
    "changed",
    [
        {"rates": {"a": 0.2, "b": 0.1, "c": 0.1}},
        {"rates": {"a": 0.1, "b": 0.1}},
        {"momenta": {"a": Momentum(factor=0.9)}},
        {"grad_scale": 2.0},
        {"world_size": 3},
    ],
)
def test_the_last_intake_is_taken_again_only_if_nothing_changed(changed):
    given = {"rates": dict.fromkeys("abc", 0.1), "momenta": {}, "grad_scale": 1.0, "world_size": 2}
    last = Intake.of(topk(), MODEL, **given)
    assert Intake.of(topk(), MODEL, **given, last=last) is last
    fresh = Intake.of(topk(), MODEL, **(given | changed), last=last)
    assert fresh == Intake.of(topk(), MODEL, **(given | changed))
    assert fresh != last


def test_an_intake_does_not_follow_what_the_caller_writes_later():
    momenta = {"a": Momentum(factor=0.9)}
    given = {"grad_scale": 1.0, "world_size": 2}
    last = Intake.of(topk(), MODEL, {}, momenta, **given)
    momenta["a"] = Momentum(factor=0.5)
    assert Intake.of(topk(), MODEL, {}, momenta, **given, last=last).momenta["a"].factor == 0.5


def test_parameters_lie_alike_from_the_start_on_without_gaps():
    assert lie_alike(MODEL, Segments.of(["x", "y", "z"], [2, 0, 3]))
    assert not lie_alike(MODEL, Segments.of(["a", "b", "c"], [2, 1, 2]))
    assert not lie_alike(MODEL.among(("c", "a")), MODEL.among(("c", "a")))
    assert not lie_alike(MODEL.among(("c",)), Segments.of(["c"], [3]))


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "a"), ("a",), ()])
def test_what_is_written_to_memory_is_read_again_and_is_a_copy(names):
    memory = Memory(MODEL, kinds={"owed": torch.float32}, device=CPU)
    segments = Segments.of(names, [MODEL[name].size for name in names])
    x = torch.arange(1.0, segments.numel + 1)
    memory.write("owed", segments, x)
    got = memory.read("owed", segments)
    assert got.tolist() == x.tolist()
    got.fill_(9.0)
    x.fill_(7.0)
    assert memory.read("owed", segments).tolist() == list(range(1, segments.numel + 1))
    assert sum(memory["owed"].tolist()) == sum(range(1, segments.numel + 1))

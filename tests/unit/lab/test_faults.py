"""The judges of the fault lab: what did not end well is not taken for well."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
GOOD = {"weights_sha256": "a", "wire_bytes_sent_per_rank": 10, "final_loss": 2.0}


@pytest.fixture(scope="module")
def lab():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import fault_bench
        import fault_kinds
        import fault_points
        import fault_ranks

        yield fault_bench, fault_kinds, fault_points, fault_ranks
        for name in [name for name in sys.modules if name.startswith("fault_")]:
            del sys.modules[name]


@pytest.fixture
def story(lab, tmp_path):
    bench = lab[0].Bench(tmp_path, None)
    bench.undisturbed = lambda *_: [GOOD] * 4
    bench.band = lambda _: (2.0, 3.0)
    return lab[0].Scenario(bench, "a seed")


@pytest.fixture
def ended(lab):
    return lab[3].Ended


def test_a_seed_draws_the_same_again(lab, tmp_path):
    bench = lab[0].Bench(tmp_path, None)
    one, again, other = (lab[0].Scenario(bench, seed).draw_point() for seed in ("kill 1", "kill 1", "kill 2"))
    assert one == again != other


def test_a_rank_that_had_to_be_ended_has_hung(lab, story, ended):
    with pytest.raises(lab[0].FaultError, match="HUNG: rank 1 of 2"):
        story.all_said([ended(exitcode=1, error="ExchangeError"), ended(exitcode=None)])


@pytest.mark.parametrize("error", ["RuntimeError", "IndexError", ""])
def test_an_error_that_is_none_of_ours_is_unclear(lab, story, ended, error):
    with pytest.raises(lab[0].FaultError, match="UNCLEAR: rank 0 of 1"):
        story.all_said([ended(exitcode=1, error=error)])


def test_only_the_one_that_was_killed_may_say_nothing(lab, story, ended):
    killed, told = ended(exitcode=-signal.SIGKILL), ended(exitcode=1, error="ExchangeError")
    story.all_said([killed, told], killed=0)
    with pytest.raises(lab[0].FaultError, match="UNCLEAR: rank 0 of 2"):
        story.all_said([killed, told], killed=1)


@pytest.mark.parametrize("what", GOOD)
def test_other_bits_or_bytes_are_a_loss(lab, story, ended, what):
    story.bench.undisturbed = lambda *_: [GOOD]
    story.same([ended(exitcode=0, result=GOOD)])
    with pytest.raises(lab[0].FaultError, match=f"LOST: {what} of rank 0"):
        story.same([ended(exitcode=0, result=GOOD | {what: "b"})])


def test_a_run_that_did_not_finish_or_whose_models_differ_is_a_loss(lab, story, ended):
    good = ended(exitcode=0, result=GOOD)
    with pytest.raises(lab[0].FaultError, match="LOST: the run did not finish"):
        story.finished([good, ended(exitcode=1, error="GroupError")])
    with pytest.raises(lab[0].FaultError, match="LOST: models differ"):
        story.finished([good, ended(exitcode=0, result=GOOD | {"weights_sha256": "b"})])


@pytest.mark.parametrize("loss", [3.3, float("nan"), float("inf")])
def test_a_loss_outside_of_the_band_is_a_loss(lab, story, loss):
    story.in_band(3.2)
    with pytest.raises(lab[0].FaultError, match="LOST: the loss is"):
        story.in_band(loss)


def test_a_debt_that_is_forgotten_or_halved_is_a_loss(lab):
    kinds, before = lab[1], {"owed": torch.tensor([1.0, -2.0])}
    kinds._same_debt(before, [{"owed": torch.tensor([0.0, -2.0])}, {"owed": torch.tensor([2.0, -2.0])}], 2)
    for after in ([{"owed": torch.zeros(2)}], [{"owed": before["owed"] / 2}], [{}], []):
        with pytest.raises(lab[0].FaultError, match="LOST: "):
            kinds._same_debt(before, after, 1)


def test_a_run_that_begins_anew_although_there_must_be_a_checkpoint_is_a_loss(lab, story):
    assert [lab[0].saved_before(step) for step in (0, 1, 8, 9, 17)] == [0, 0, 0, 8, 16]
    with pytest.raises(
        lab[0].FaultError, match="LOST: the last checkpoint is of step 0, and must be of 8 or later"
    ):
        story.resumed(least=8)


def test_damage_changes_bytes(lab):
    points = lab[2]
    for seed in range(20):
        for how in points.DAMAGES:
            for size in (1, 8, 100):
                raw = torch.zeros(size, dtype=torch.uint8)
                points.damage_(raw, how, random.Random(seed))
                assert raw.any(), how

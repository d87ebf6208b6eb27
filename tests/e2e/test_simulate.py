"""``laconic simulate``: the bytes, bits and scores of real ranks, seconds of a network that is not there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from laconic.errors import LaconicError
from laconic.lab import loop, simulated
from laconic.lab.folder import read_lines
from laconic.lab.method_words import folder_name
from laconic.lab.session import Ending, Trial, run_trials
from laconic.lab.simulated import Scene, run_simulated
from laconic.lab.spec import Spec
from laconic.lab.tasks import Lm, Logreg
from laconic.lab.training import Training
from laconic.sim import Cable, Network, Outage, Pace
from pool import run_alone

SPEC = Spec(
    task=Lm(hidden=24, length=32),
    training=Training(steps=9, batch=2, log_every=4, eval_every=6),
    method="dense",
    workers=2,
    device="cpu",
    data_home="nowhere",
    checkpoint_every=None,
)
WORDS = (
    "dense",
    "topk:density=0.01",
    "sdagc",
    "celgc:every=4:send=topk+density=0.1",
    "cat:cost=bits",
    "topk:density=0.02:exchange=sharded",
    "powersgd",
)
SAME = [
    "wire_bytes_sent_per_rank", "link_bytes_sent_per_rank", "dense_bytes_per_rank", "setup_bytes", "weights_sha256",
    "train_loss", "density", "clipped_share", "syncs", "steps",
]  # fmt: skip


def _trials(spec: Spec, words: tuple[str, ...], out: Path) -> tuple[Trial, ...]:
    return tuple(Trial(spec=replace(spec, method=word), folder=out / folder_name(word)) for word in words)


def _real(group, spec: Spec, words: tuple[str, ...], out: Path) -> Ending:
    return run_trials(_trials(spec, words, out), {}, True)


def _scene(ranks: int, batched="no", rate=1e8, **pace) -> Scene:
    network = Network(ranks=ranks, cables=(Cable(bits_per_second=rate, latency=0.001),))
    return Scene(network=network, pace=Pace(ranks=ranks, **{"seconds": 0.05} | pace), batched=batched)


def _simulated(spec: Spec, words: tuple[str, ...], out: Path, scene: Scene) -> list[dict]:
    ending = run_simulated(_trials(spec, words, out), scene, {}, quiet=True)
    assert ending.error is None
    return list(ending.results)


def _text(folder: Path) -> Path:
    """A little text: there is little to evaluate."""
    words = ["a", "few", "plain", "words", "that", "come", "again", "in", "another", "order"]
    text = " ".join(words[i * i % 7 + i % 3] for i in range(4000))
    (folder / "text").mkdir()
    (folder / "text" / "some.txt").write_text(text)
    return folder / "text"


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_bits_and_scores_are_those_of_real_ranks(ranks, tmp_path):
    training = Training(steps=6, batch=2, log_every=4, eval_every=6)
    spec = replace(SPEC, workers=ranks, task=Lm(data=str(_text(tmp_path)), hidden=24, length=32), training=training)
    answers = run_alone(ranks, _real, spec, WORDS, tmp_path / "real", within_seconds=50)
    assert [answer.message for answer in answers] == [""] * ranks
    simulated = _simulated(spec, WORDS, tmp_path / "simulated", _scene(ranks))
    for word, real, mine in zip(WORDS, answers[0].value.results, simulated, strict=True):
        assert {key: mine[key] for key in SAME} == {key: real[key] for key in SAME}, word
        # Weights are equal to the bit; a sum over what is evaluated is taken as memory happens to lie.
        assert mine["scores"] == pytest.approx(real["scores"], rel=1e-7), word
        lines = [read_lines(tmp_path / kind / folder_name(word) / "steps.jsonl") for kind in ("real", "simulated")]
        other = ("seconds", "step_seconds", "data_share", "metric", "eval_loss", "waits")
        bare = [[{k: v for k, v in line.items() if k not in other} for line in each] for each in lines]
        assert bare[0] == bare[1], word


def test_given_seconds_are_told_to_the_digit_and_what_stands_still_delays_all(tmp_path):
    spec = replace(SPEC, task=Logreg(), workers=2)
    [mine] = _simulated(spec, ("dense",), tmp_path / "one", _scene(2))
    # 31 numbers: two rounds, and half of them in each.
    wire = 2 * 0.001 + 31 * 4 * 8 * (1 + 66 / 1448) / 1e8
    assert mine["seconds"] == pytest.approx(9 * (0.05 + wire))
    assert mine["simulated"]["step_seconds"] == pytest.approx(0.05 + wire)
    assert mine["simulated"]["wire_seconds"] == pytest.approx(9 * wire)
    lines = read_lines(tmp_path / "one" / "dense" / "steps.jsonl")
    assert [line["step_seconds"] for line in lines] == pytest.approx([0.05 + wire] * 4)
    outage = (Outage(rank=1, second=0.2, seconds=3.0),)
    [late] = _simulated(spec, ("dense",), tmp_path / "two", _scene(2, outages=outage))
    assert late["seconds"] == pytest.approx(mine["seconds"] + 3.0)
    assert late["weights_sha256"] == mine["weights_sha256"]


def test_a_sync_under_way_takes_its_time_however_often_a_run_is_looked_at(tmp_path):
    def seconds(eval_every):
        training = Training(steps=12, batch=2, log_every=100, eval_every=eval_every)
        spec = replace(SPEC, task=Logreg(), workers=2, training=training)
        out = tmp_path / str(eval_every)
        [mine] = _simulated(spec, ("diloco:every=4:delay=2",), out, _scene(2, rate=1e4))
        assert mine["seconds"] == pytest.approx(mine["simulated"]["seconds"])
        assert mine["simulated"]["waited_seconds"] == pytest.approx(mine["seconds"] - 12 * 0.05)
        return mine["seconds"]

    rarely, often = seconds(100), seconds(3)
    assert rarely > 12 * 0.05
    # An evaluation waits for the sync: what would have been computed meanwhile, two steps, comes after it.
    assert rarely <= often <= rarely + 3 * 2 * 0.05


def test_a_wish_to_stop_is_looked_for_by_real_seconds(monkeypatch, tmp_path):
    class Wish:
        """Comes up at the third look of two ranks."""

        looks = 0

        @property
        def wanted(self) -> bool:
            self.looks += 1
            return self.looks > 4

    @contextmanager
    def wishes():
        yield Wish()

    monkeypatch.setattr(simulated, "noted_wishes", wishes)
    ticks = iter(range(1000))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    training = Training(steps=9, batch=2, log_every=100, eval_every=100)
    spec = replace(SPEC, task=Logreg(), workers=2, training=training)
    # Steps that take a real second and hardly a simulated one: ranks look after each.
    [mine] = _simulated(spec, ("dense",), tmp_path, _scene(2, seconds=1e-9, rate=1e15))
    assert (mine["steps"], mine["finished"]) == (3, False)


def test_a_method_that_weighs_seconds_sees_the_simulated_ones(tmp_path):
    [mine] = _simulated(replace(SPEC, workers=2), ("cat:cost=seconds",), tmp_path, _scene(2))
    again = _simulated(replace(SPEC, workers=2), ("cat:cost=seconds",), tmp_path / "again", _scene(2))
    # Real seconds would make every run another one.
    assert mine["weights_sha256"] == again[0]["weights_sha256"]
    assert mine["wire_bytes_sent_per_rank"] == again[0]["wire_bytes_sent_per_rank"]


@pytest.mark.parametrize(
    ("task", "word"),
    [
        (Lm(hidden=24, length=32), "topk:density=0.1"),
        (Lm(model="gpt", hidden=8, layers=1, length=32), "celgc:every=3"),
    ],
    ids=["lstm", "gpt with local steps"],
)
def test_batched_ranks_learn_what_single_ones_learn(task, word, tmp_path):
    spec = replace(SPEC, task=task, workers=3, training=replace(SPEC.training, eval_every=9))
    [alone] = _simulated(spec, (word,), tmp_path / "alone", _scene(3))
    [both] = _simulated(spec, (word,), tmp_path / "both", _scene(3, batched="yes", seconds=None))
    assert (alone["simulated"]["batched"], both["simulated"]["batched"]) == (False, True)
    assert both["train_loss"] == pytest.approx(alone["train_loss"], abs=1e-5)
    assert both["wire_bytes_sent_per_rank"] == alone["wire_bytes_sent_per_rank"]
    assert both["seconds"] > 0


def test_what_cannot_be_batched_any_more_goes_on_rank_by_rank(monkeypatch, tmp_path):
    spec = replace(SPEC, task=Lm(data=str(_text(tmp_path)), hidden=24, length=32), workers=2)
    [alone] = _simulated(spec, ("dense",), tmp_path / "alone", _scene(2))
    batched, calls = simulated.batched, []

    def fails(works, batches, *, alike):
        calls.append(works)
        made = batched(works, batches, alike=alike)
        if len(calls) == 3:
            raise RuntimeError("no memory\nand more")
        return made

    monkeypatch.setattr(simulated, "batched", fails)
    [mine] = _simulated(spec, ("dense",), tmp_path / "mine", _scene(2, batched="yes"))
    # The first step is tried and not batched; two were.
    assert len(calls) == 3
    assert mine["simulated"]["unbatched_why"] == "step 4 could not be batched: no memory"
    assert not mine["simulated"]["batched"]
    assert mine["train_loss"] == pytest.approx(alone["train_loss"], abs=1e-5)
    assert mine["seconds"] == pytest.approx(alone["seconds"])


def test_what_cannot_be_batched_runs_all_the_same_and_says_why(monkeypatch, tmp_path):
    made, kind = [], simulated.BatchedWork
    monkeypatch.setattr(simulated, "BatchedWork", lambda *a, **k: made.append(kind(*a, **k)) or made[-1])
    spec = replace(SPEC, task=Logreg(), workers=2)
    [mine] = _simulated(spec, ("dense",), tmp_path, _scene(2, batched="yes"))
    assert not mine["simulated"]["batched"]
    assert "cannot be batched" in mine["simulated"]["unbatched_why"]
    # Nobody listens to gradients for an order that is not needed.
    assert [(work._hooks, work._order) for work in made] == [([], [])] * 2


def test_what_laconic_raises_on_a_rank_ends_in_one_line(monkeypatch, tmp_path):
    train = simulated.run_trial

    def breaks(trial, seat, environment):
        if trial.spec.method == "topk" and seat.talk.rank == 1:
            raise LaconicError("the message is torn.")
        return train(trial, seat, environment)

    monkeypatch.setattr(simulated, "run_trial", breaks)
    trials = _trials(replace(SPEC, task=Logreg(), workers=2), ("topk", "dense"), tmp_path)
    ending = run_simulated(trials, _scene(2), {}, quiet=True)
    assert ending.error == "topk: the message is torn."
    assert [result["label"] for result in ending.results] == ["dense"]

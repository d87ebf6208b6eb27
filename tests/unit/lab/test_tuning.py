"""What a tuner chose, as files and people are told it."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from laconic.cli.methods import Methods
from laconic.cli.train import _print
from laconic.costs import COSTS
from laconic.lab.folder import RunFolder, read_lines
from laconic.lab.method_words import make
from laconic.lab.show import note_of
from laconic.lab.tuning import in_words, told
from laconic.stats import Tuning

CURVE = ((10.0, 1 / 3), (1234.5678, 2e-9))
TIMED = Tuning(
    count=1200.4, gain=0.5, cost=0.25, unit="seconds", latency_seconds=0.002, bits_per_second=8e6, curve=CURVE
)
BUDGET = Tuning(count=64.0, gain=nan, cost=0.25, unit="seconds", latency_seconds=0.002, bits_per_second=inf)
LINE = {"loss": 1.5, "wire_bytes": 2e6, "dense_bytes": 8e6, "step_seconds": 0.01, "data_share": 0.002}


def test_what_is_known_is_told_and_nothing_else():
    said = told(TIMED, curve=False)
    assert said == {
        "count": 1200.4, "unit": "seconds", "gain": 0.5, "cost": 0.25, "efficiency": 2.0, "latency_seconds": 0.002,
        "bits_per_second": 8e6,
    }  # fmt: skip
    assert told(BUDGET, curve=True).keys() == {"count", "unit", "cost", "latency_seconds", "bits_per_second"}
    assert told(TIMED, curve=True) == said | {"curve": [[10.0, 0.3333], [1234.57, 2e-9]]}


def test_lines_and_checkpoints_keep_it(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin({}, {}, from_step=0)
    line = {"step": 10} | told(TIMED, curve=True)
    folder.add(line)
    folder.add({"step": 20} | told(BUDGET, curve=True))
    lines = read_lines(folder.path / "steps.jsonl")
    assert lines[0] == line
    assert lines[1]["bits_per_second"] is None, "JSON has no infinity"
    folder.save_rank(10, "shared", {"last": line})
    assert folder.load_rank(10, "shared") == {"last": line}


@pytest.mark.parametrize(
    ("tuning", "words"),
    [
        (
            TIMED,
            "T is 1,200 entries a rank, for the most gain a second; the link as fitted: 2.00 ms and 8.00 Mbit/s",
        ),
        (BUDGET, "T is 64 entries a rank; the link as fitted: 2.00 ms, whatever the size of a message"),
    ],
)
def test_in_words(tuning, words):
    assert in_words(told(tuning, curve=True)) == words
    assert in_words({}) == "T is \u2013 entries a rank"


def test_progress_says_the_amount_and_the_link_where_there_are_any():
    assert note_of(LINE, "") == "loss 1.500  2.0 MB  4.0x  10.0 ms/step  data 0.2%"
    assert "  4.0x  T 1,200 at 8.00 Mbit/s  10.0 ms" in note_of(LINE | told(TIMED, curve=False), "")
    assert "  4.0x  T 64  10.0 ms" in note_of(LINE | told(BUDGET, curve=False), "")


def test_the_end_of_a_training_says_it(tmp_path, capsys):
    result = {
        "label": "cat", "finished": True, "steps": 5, "syncs": 5, "metric": "loss", "scores": {"valid": 1.0},
        "wire_bytes_sent_per_rank": 10, "ratio": 2.0, "seconds": 1.0, "data_share": 0.0,
    }  # fmt: skip
    _print(result, tmp_path)
    without = capsys.readouterr().out
    assert "T is" not in without
    _print(result | {"tuning": told(TIMED, curve=True)}, tmp_path)
    said = capsys.readouterr().out
    assert f"\nat the end {in_words(told(TIMED, curve=True))}\n" in said


def test_every_cost_is_a_word_and_the_list_of_methods_names_them(capsys):
    for name, cost in COSTS.items():
        assert make(f"cat:cost={name}").tuner.cost == cost()
        assert make(f"celgc:every=8:send=cat+cost={name}").tuner.cost == cost()
    Methods().run()
    said = capsys.readouterr().out
    assert "--method cat:cost=bits, or packets, udp, 802.15.4, paper, seconds;" in said
    Methods(json=True).run()
    assert "cat" in {one["name"] for one in json.loads(capsys.readouterr().out)["methods"]}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "cat:cost=pigeons",
            "no cost is called 'pigeons'. There are: bits, packets, udp, 802.15.4, paper, seconds",
        ),
        ("cat:cost=802.15", "must be a cost"),
        ("cat:cost=", "no cost is called ''"),
        ("celgc:send=cat+cost=pigeons", r"sends by 'cat.cost=pigeons', .* no cost is called 'pigeons'"),
        ("sdagc:law=cat:cost=pigeons", "no cost is called 'pigeons'"),
        ("cat:share=2", "share must be"),
        ("cat:per=step", "per must be"),
    ],
)
def test_a_cost_that_is_none_is_refused(word, said):
    with pytest.raises(ValueError, match=said):
        make(word)

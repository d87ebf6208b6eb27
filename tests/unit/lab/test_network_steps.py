"""The benchmark of steps on loopback with a tiny model; and what else wants real ranks, with the same crew."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from laconic.lab.launch import RankError
from laconic.lab.network import steps
from laconic.lab.network.crew import run_crew
from laconic.lab.network.plots import page
from laconic.lab.network.race import Entry, race
from laconic.lab.network.step_rows import rows_of
from laconic.lab.network.step_table import floor, table
from laconic.lab.network.step_visits import Course, Visits, visit_all, warmup_periods
from laconic.lab.network.steps import BenchSteps
from laconic.lab.peers import SHIPPED, peer_of
from laconic.lab.tasks import Lm
from laconic.lab.training import Training
from unit.lab import network_works

pytestmark = pytest.mark.timeout(100)
TRAINED = tuple(word for word in (*SHIPPED, "topk:density=0.1", "spartan") if not peer_of(word).missing())
PEER = """
from dataclasses import dataclass
import torch, torch.distributed as dist
from laconic.lab.peers import Prepared

@dataclass(frozen=True)
class Own:
    name: str = "{name}"
    period: int = 1

    def missing(self):
        return "{missing}"

    def prepare(self, module, optimizer):
        if dist.get_rank() == 1:
            {second}
        return Prepared(model=torch.nn.parallel.DistributedDataParallel(module), optimizer=optimizer)

PEER = Own()
"""


def visit_train_and_race(course: Course, words: tuple[str, ...], entry: Entry) -> dict[str, Any]:
    """Do one after the other what would have a crew of its own each, which takes seconds to start."""
    return {"visited": visit_all(course), "trained": network_works.several(words), "raced": race(entry)}


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one run made: its file, page and table; and what else the ranks did, and said."""

    result: dict[str, Any]
    page: str
    printed: str
    ranks: list[dict[str, Any]]
    heard: list[str]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["peer"]: row for row in self.result["rows"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run the benchmark with a peer that fails and one that hangs; then every shipped peer, and a race."""
    folder = tmp_path_factory.mktemp("made")

    def own(name: str, second: str = "pass", missing: str = "") -> str:
        path = folder / f"{name}.py"
        path.write_text(PEER.format(name=name, second=second, missing=missing))
        return str(path)

    failing = (own("raises", "raise ValueError('not on gloo')"), own("hangs", "dist.recv(torch.zeros(1), 0)"))
    bench = BenchSteps(
        hosts=(2,), loopback=True, layers=2, width=64, warmup=0, steps=4, rounds=1,
        peers=(own("fine"), *failing, own("absent", missing="it is not here")), methods=("topk", "celgc:every=2"),
        json=folder / "out.json", page=folder / "page.html",
    )  # fmt: skip
    task = Lm(hidden=16, embedding=8, length=8)
    entry = Entry(
        competitor="spartan", rate=4.0, task=task, training=Training(batch=2).filled(task.choice()),
        data_home=folder, steps=8, eval_every=4, valid_examples=200,
    )  # fmt: skip
    ranks: list[dict[str, Any]] = []
    heard: list[str] = []

    def one_crew(number: int, _: object, course: Course, *, hear: Callable[[str], None], **more: Any):
        def listen(said: str) -> None:
            heard.append(said)
            if said[0].isdigit():
                hear(said)

        ranks.extend(run_crew(number, visit_train_and_race, course, TRAINED, entry, hear=listen, **more))
        return [told["visited"] for told in ranks]

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(printed):
        patched.setattr(steps, "_LEAST_PATIENCE_SECONDS", 4.0)
        patched.setattr(steps, "run_crew", one_crew)
        bench.run()
    result = json.loads((folder / "out.json").read_text())
    text = (folder / "page.html").read_text()
    return Made(result=result, page=text, printed=printed.getvalue(), ranks=ranks, heard=heard)


def test_rows_of_a_run(made):
    assert made.result["parameters"] == 2 * 64 * 65
    assert made.result["options"]["rates"][0] is None
    [link] = made.result["links"]
    assert 0 < link["latency_p10"] <= link["latency_seconds"]
    assert link["bits_per_second"] > 0
    rows, ran = made.rows, ["ddp", "alone", "fine", "topk", "celgc:every=2", "ddp again"]
    assert [name for name in rows if rows[name]["failed"] is None] == ran
    for name in ran:
        row = rows[name]
        assert (row["hosts"], row["megabits"], row["loopback"], row["interface_bytes"]) == (2, None, True, None)
        assert row["p10"] <= row["milliseconds"] <= row["p90"]
        assert sum(row["split"].values()) == pytest.approx(row["milliseconds"])
    timed = {name: len(rows[name]["seconds"]) for name in ("ddp", "celgc:every=2")}
    assert timed == {"ddp": 4, "celgc:every=2": 2}, "periods"
    assert rows["topk"]["link_bytes"] > 0
    assert "density=0.001" in rows["topk"]["setting"]
    assert rows["ddp"]["link_bytes"] is None
    assert rows["ddp"]["times_faster"] == 1
    assert "the floor:" in made.printed
    assert "absent: not run: it is not here" in made.printed
    assert "Plotly.newPlot('figure0'" in made.page


def test_a_peer_that_fails_or_hangs_is_told_and_the_others_go_on(made):
    rows = made.rows
    assert rows["absent"]["failed"] == "not run: it is not here"
    assert rows["raises"]["failed"] == "failed: ValueError: not on gloo"
    assert rows["hangs"]["failed"].startswith("failed: ")
    assert rows["hangs"]["milliseconds"] is None
    assert table(list(rows.values()), {"hosts": 2, "megabits": None, "loopback": True}).row_count == 6
    assert "raises: failed: ValueError: not on gloo" in floor(list(rows.values()))


def test_every_shipped_peer_trains_and_leaves_the_ranks_with_equal_weights(made):
    first, second = (told["trained"] for told in made.ranks)
    for word in TRAINED:
        assert first[word]["after"].isfinite().all(), word
        assert not torch.equal(first[word]["after"], first[word]["before"]), word
        assert torch.equal(first[word]["after"], second[word]["after"]) == (word != "alone"), word
    # By different roads: both average models after every fourth step.
    if "torchft-local" in TRAINED:
        torch.testing.assert_close(first["torchft-local"]["after"], first["post-local"]["after"])


def test_ranks_know_their_places_meet_and_are_heard(made):
    first, second = (told["trained"] for told in made.ranks)
    assert first["met"] == second["met"] == [[10.0 * turn, 10.0 * turn + 1] for turn in range(5)]
    assert "has left" in first["left"]
    assert "ranks [1] did not come" in first["late"]
    here, there = first["place"], second["place"]
    assert (here["RANK"], there["RANK"]) == ("0", "1")
    assert (here["WORLD_SIZE"], here["GLOO_SOCKET_IFNAME"], here["threads"]) == ("2", "lo", 1)
    for place in (here, there):
        with pytest.raises(ProcessLookupError):
            os.kill(place["pid"], 0)
    assert made.heard[-1] == "one of 2"


def test_ranks_of_a_race_see_the_same_curve(made):
    first, second = (told["raced"] for told in made.ranks)
    assert [seen.step for seen in first.curve] == [4, 8]
    assert first.curve == second.curve
    assert first.link_bytes > 0


def test_a_crew_that_fails_is_told_and_the_next_pair_is_measured(tmp_path, capsys, monkeypatch):
    def crew(number: int, *_: object, **__: object) -> list[dict[str, Any]]:
        if number == 2:
            raise RankError("rank 1 was ended by SIGKILL")
        return [{"transfer": None, "visits": [_seen("ddp", [0.1])]}]

    monkeypatch.setattr(steps, "run_crew", crew)
    file = tmp_path / "out.json"
    BenchSteps(hosts=(2, 1), loopback=True, peers=(), methods=(), json=file).run()
    result = json.loads(file.read_text())
    assert [link.get("failed") for link in result["links"]] == ["rank 1 was ended by SIGKILL", None]
    assert [(row["hosts"], row["peer"]) for row in result["rows"]] == [(1, "ddp")]
    assert "2 ranks, loopback: rank 1 was ended by SIGKILL" in capsys.readouterr().out
    with pytest.raises(RankError, match="not one pair of hosts and rate came to its end"):
        BenchSteps(hosts=(2,), loopback=True, peers=(), methods=()).run()


def test_two_steps_at_least_are_not_timed():
    assert warmup_periods(0, 1) == range(2, 3)
    assert warmup_periods(5, 1) == range(2, 6)
    assert warmup_periods(0, 4) == range(1, 2)


def _seen(name: str, seconds: list[float], **more: object) -> Visits:
    return Visits(name=name, seconds=seconds, **more)


def test_a_step_is_split_into_what_it_is_made_of():
    spent = {
        "wire_bytes": 10.0, "link_bytes": 30.0, "select_seconds": 0.002, "wait_seconds": 0.05,
        "blocked_seconds": 0.04, "skipped_steps": 0.0, "collectives": 1.0,
    }  # fmt: skip
    first = [
        _seen("ddp", [0.2, 0.4, 0.3], interface_bytes=[100.0]),
        _seen("alone", [0.02]),
        _seen("topk", [0.1], grown=[spent]),
    ]
    second = [
        _seen("ddp", [9.0], interface_bytes=[300.0]),
        _seen("alone", [9.0]),
        _seen("topk", [9.0], grown=[spent | {"link_bytes": 50.0, "select_seconds": 9.0}]),
    ]
    ddp, alone, topk = rows_of([first, second], {})
    assert (ddp["milliseconds"], ddp["interface_bytes"]) == (pytest.approx(300), 200)
    assert ddp["split"] == {"compute": 20, "select": 0, "wire": pytest.approx(280), "decode": 0, "rest": 0}
    assert alone["times_faster"] == pytest.approx(15)
    assert topk["link_bytes"] == 40
    wanted = {"compute": 20, "select": 2, "wire": 40, "decode": 10, "rest": 28}
    assert topk["split"] == pytest.approx(wanted)


def test_the_page_draws_times_and_bytes_against_each_other():
    row = {"hosts": 2, "megabits": 100.0, "peer": "x<own>y", "milliseconds": 3.0, "interface_bytes": 4000.0}
    links = [{"hosts": 2, "megabits": rate, "bits_per_second": 9e7} for rate in (100.0, None)]
    result = {
        "parameters": 5, "cpu": "one", "torch": "2", "command": "x", "links": links,
        "rows": [row, row | {"peer": "ddp again"}, row | {"peer": "failed", "milliseconds": None}],
    }  # fmt: skip
    text = page(result)
    assert "2 ranks: time against what the link carries" in text
    assert "2 ranks: bytes a rank sends in a step against its time" in text
    assert "x&lt;own&gt;y" in text
    assert "x<own>y" not in text
    assert "ddp again" not in text
    none = [row | {"interface_bytes": None}]
    assert "bytes a rank sends" not in page(result | {"rows": none})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hosts": (0,)}, "hosts must be a whole number of 1 or more"),
        ({"hosts": ()}, "at least one number of hosts"),
        ({"rates": (-1.0,)}, "rates must be megabits a second"),
        ({"rates": (math.nan,)}, "rates must be megabits a second"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"warmup": -1}, "warmup must be a whole number"),
        ({"density": 0.0}, "density must be a number"),
        ({"seconds_a_method": -1.0}, "seconds-a-method must be a finite number"),
        ({"peers": ("nobody",)}, "no peer is called 'nobody'"),
        ({"methods": ("nothing",)}, "nothing"),
        ({"peers": ("topk",), "methods": ("topk",)}, "must be different ones"),
        ({"peers": ("post-local", "post-local:4")}, "must be different ones"),
    ],
)
def test_wrong_options_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        BenchSteps(**wrong)


def test_plain_ddp_is_first_and_the_floor_is_always_there():
    names = list(BenchSteps(peers=("ddp-fp16",), methods=("topk",)).competitors())
    assert names == ["ddp", "alone", "ddp-fp16", "topk"]
    assert BenchSteps().parameters == 10_496_000

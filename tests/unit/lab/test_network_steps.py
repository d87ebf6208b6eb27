"""The benchmark of steps on loopback with a tiny model: its rows, peers that fail, its page, its options."""

from __future__ import annotations

import json
import math

import pytest

from laconic.lab.network import hosts, steps
from laconic.lab.network.plots import page
from laconic.lab.network.step_rows import rows_of
from laconic.lab.network.step_table import floor, table
from laconic.lab.network.step_visits import Visits
from laconic.lab.network.steps import BenchSteps

pytestmark = pytest.mark.timeout(100)
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


@pytest.fixture
def own(tmp_path):
    """Return what writes a peer into a file."""

    def write(name: str, second: str = "pass", missing: str = "") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(PEER.format(name=name, second=second, missing=missing))
        return str(path)

    return write


def test_rows_of_a_run_in_which_one_peer_fails_and_one_hangs(tmp_path, own, capsys, monkeypatch):
    monkeypatch.setattr(steps, "_LEAST_PATIENCE_SECONDS", 4.0)
    file, shown = tmp_path / "out.json", tmp_path / "page.html"
    failing = (own("raises", "raise ValueError('not on gloo')"), own("hangs", "dist.recv(torch.zeros(1), 0)"))
    peers = ("post-local:4", own("fine"), *failing, own("absent", missing="it is not here"))
    BenchSteps(
        hosts=(2,), loopback=True, layers=2, width=64, warmup=1, steps=4, rounds=1, peers=peers,
        methods=("topk", "celgc:every=2"), json=file, page=shown,
    ).run()  # fmt: skip
    result = json.loads(file.read_text())
    assert result["parameters"] == 2 * 64 * 65
    assert result["options"]["rates"][0] is None
    [link] = result["links"]
    assert 0 < link["latency_p10"] <= link["latency_seconds"]
    assert link["bits_per_second"] > 0
    rows = {row["peer"]: row for row in result["rows"]}
    ran = ["ddp", "alone", "post-local:4", "fine", "topk", "celgc:every=2", "ddp again"]
    assert [name for name in rows if rows[name]["failed"] is None] == ran
    _check_failures(rows)
    for name in ran:
        row = rows[name]
        assert (row["hosts"], row["megabits"], row["loopback"], row["interface_bytes"]) == (2, None, True, None)
        assert row["p10"] <= row["milliseconds"] <= row["p90"]
        assert sum(row["split"].values()) == pytest.approx(row["milliseconds"])
    timed = {name: len(rows[name]["seconds"]) for name in ("ddp", "post-local:4", "celgc:every=2")}
    assert timed == {"ddp": 4, "post-local:4": 2, "celgc:every=2": 2}, "periods"
    assert rows["topk"]["link_bytes"] > 0
    assert "density=0.001" in rows["topk"]["setting"]
    assert rows["ddp"]["link_bytes"] is None
    assert rows["ddp"]["times_faster"] == 1
    printed = capsys.readouterr().out
    assert "the floor:" in printed
    assert "absent: not run: it is not here" in printed
    assert "Plotly.newPlot('figure0'" in shown.read_text()


def _check_failures(rows):
    assert rows["absent"]["failed"] == "not run: it is not here"
    assert rows["raises"]["failed"] == "failed: ValueError: not on gloo"
    assert rows["hangs"]["failed"].startswith("failed: ")
    assert rows["hangs"]["milliseconds"] is None
    assert table(list(rows.values()), {"hosts": 2, "megabits": None, "loopback": True}).row_count == 7
    assert "raises: failed: ValueError: not on gloo" in floor(list(rows.values()))


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


def test_without_root_one_line_says_what_is_missing_and_offers_loopback(monkeypatch):
    monkeypatch.setattr(hosts.shutil, "which", lambda word: None if word == "tc" else word)
    with pytest.raises(OSError, match=r"need tc of iproute2, which is not installed\. .* write --loopback\."):
        BenchSteps().run()
    monkeypatch.setattr(hosts.shutil, "which", lambda word: word)
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    with pytest.raises(OSError, match=r"need root, to make network namespaces\. .* write --loopback\."):
        BenchSteps().run()
    with pytest.raises(OSError, match="need root"), hosts.shaped_hosts(2):
        pass


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

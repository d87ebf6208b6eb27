"""The page's formula is that of predict.py."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict, replace
from importlib.resources import files
from math import inf

import pytest

from laconic.plan import Job, Link, predict
from laconic.plan.facts import Cost, Host, Rehearsed
from laconic.plan.page import page, told
from unit.plan_cases import asked, facts, local, plain, rehearsal, sparse

NODE = shutil.which("node")
BUSY = Host(
    gather=Cost(latency=1e-4, per_byte=0.02),
    sum=Cost(latency=2e-4, per_byte=1e-9),
    half=Cost(latency=3e-4, per_byte=5e-9),
    busy=True,
)
LINKS = [
    Link(workers=workers, bandwidth=rate, latency=latency, node_size=nodes, inside_bandwidth=1e4, measured=measured)
    for workers, nodes in ((2, 1), (3, 1), (16, 1), (16, 4))
    for rate in (1e-4, 0.3, 100.0, inf)
    for latency, measured in ((0.0, True), (5.0, False))
]


def _every_kind() -> Rehearsed:
    rounds = (
        asked(100.0, after=0.1),
        asked(70.0, kind="sum", after=0.2, half=True),
        asked(64.0, kind="deal"),
        asked(32.0, kind="broadcast"),
        asked(16.0, senders=1),
        asked(16.0, senders=3),
        asked(48.0, kind="sum", among="node"),
        asked(24.0, among="leaders"),
    )
    jobs = (
        Job(bucket=0, rounds=rounds),
        Job(bucket=2, rounds=rounds[:2]),
        Job(bucket=2, rounds=rounds[1:3], behind=1),
    )
    return Rehearsed(
        name="all", setting="", rehearsals=(rehearsal(*jobs, selecting=(0.1, 0.2), closing=0.3),), node_size=2
    )


@pytest.mark.skipif(NODE is None, reason="there is no node on this machine")
@pytest.mark.parametrize("busy", [False, True])
def test_the_page_predicts_what_python_does(busy):
    unlike = Rehearsed(
        name="unlike", setting="", rehearsals=(_every_kind().rehearsals[0], replace(plain().rehearsals[0], ranks=4))
    )
    nodes = replace(sparse("topk by nodes"), node_size=2)
    known = facts(sparse(), local(), _every_kind(), unlike, nodes, host=replace(BUSY, busy=busy))
    asks = [told(known, link)["link"] for link in LINKS]
    script = files("laconic.plan").joinpath("formula.js").read_text(encoding="utf-8")
    script += "const [facts, links] = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    script += "console.log(JSON.stringify(links.map(l => facts.methods.map(m => Planner.predict(facts, m, l)))));"
    done = subprocess.run(
        [str(NODE), "-e", script],
        input=json.dumps([known.as_dict(), asks]),
        capture_output=True,
        text=True,
        check=True,
    )
    for link, rows in zip(LINKS, json.loads(done.stdout), strict=True):
        for method, row in zip(known.methods, rows, strict=True):
            expected = asdict(predict(known, method, link))
            assert row.pop("name") == expected.pop("name")
            assert row == pytest.approx(expected, rel=1e-9), (link, method.name)


def test_the_page_asks_nobody_and_holds_what_it_draws():
    text = page(facts(sparse()), Link(workers=2, bandwidth=100.0))
    assert "src=" not in text
    assert "href=" not in text
    assert len(text) < 60_000
    assert '"topk"' in text
    assert "not measured against dense at these settings" in text


def test_a_name_cannot_end_the_script():
    hostile = replace(facts(), work="</script><b>")
    assert "</script><b>" not in page(hostile, Link(workers=2))

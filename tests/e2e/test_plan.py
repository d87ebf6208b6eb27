"""``laconic plan``, small: what it prints and writes, the page in a browser, and errors that reach the user."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tyro

from laconic.cli.commands import MARKERS
from laconic.cli.plan import Plan
from laconic.plan import Facts, Host, Link, advise, predict
from laconic.plan.facts import Cost
from laconic.plan.page import write_page

METHODS = ("dense", "topk", "sdagc", "cat", "celgc", "spartan", "powersgd", "qsgd")
QUICK = ("--steps", "2", "--warmup", "2", "--seconds", "2")
CHROMIUM = shutil.which("chromium")


def _plan(*words: str) -> Plan:
    return tyro.cli(Plan, args=words, config=MARKERS)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    """A plan of an invented model, read back from its file."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = ("--params", "60_000", "--step-seconds", "0.01", "--layers", "3", "--bandwidth", "20", "--workers", "8")
    _plan(*words, "--json", str(path), *QUICK).run()
    return json.loads(path.read_text())


def test_every_method_is_in_the_file_quickest_first(told):
    rows = told["predictions"]
    assert {row["name"] for row in rows} == {*METHODS, "ddp", "ddp-fp16"}
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert all(row["seconds"] >= 0.01 and 0 <= row["communicating"] < 1 for row in rows)
    by_name = {row["name"]: row for row in rows}
    # 8 ranks send 2 * 7/8 of the gradient each.
    assert by_name["ddp"]["link_bytes"] == pytest.approx(60_000 * 4 * 2 * 7 / 8)
    assert by_name["dense"]["link_bytes"] == pytest.approx(by_name["ddp"]["link_bytes"])
    assert by_name["ddp-fp16"]["link_bytes"] == pytest.approx(by_name["ddp"]["link_bytes"] / 2)
    assert by_name["celgc"]["every"] == 16
    assert by_name["topk"]["link_bytes"] < by_name["ddp"]["link_bytes"] / 5
    assert by_name["ddp"]["times_faster"] == 1


def test_the_file_is_enough_to_predict_again(told):
    facts = Facts.from_dict(told["facts"])
    assert facts.profile.invented
    link = Link(workers=8, bandwidth=20.0, latency=0.1)
    again = {method.name: predict(facts, method, link).seconds for method in facts.methods}
    assert again == pytest.approx({row["name"]: row["seconds"] for row in told["predictions"]})
    assert advise(facts, link).method == told["advice"]["method"]


def test_no_method_pays_on_a_link_without_limits(told):
    facts = Facts.from_dict(told["facts"])
    still = tuple(m for m in facts.methods if not m.local)
    # What talking cost the host while this ran depends on what else it did.
    free = Cost(latency=0.0, per_byte=0.0)
    host = Host(gather=free, sum=free, half=free, busy=False)
    advice = advise(replace(facts, methods=still, host=host), Link(workers=2))
    assert advice.method == "ddp"
    assert advice.text.startswith("Don't")


def test_a_users_function_on_two_ranks_and_a_measured_link(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "from laconic.plan import Subject\n"
        "def make():\n"
        "    parts = torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 2)\n"
        "    model = torch.nn.Sequential(*parts)\n"
        "    loss = lambda model: model(torch.randn(8, 40)).square().mean()\n"
        "    return Subject(model=model, loss=loss, optimizer=torch.optim.Adam(model.parameters()))\n"
    )
    words = ("module", f"{path}:make", "--measure", "--ranks-here", "2", "--methods", "topk,celgc", "--json", "-")
    _plan(*words, *QUICK).run()
    told = json.loads(capsys.readouterr().out)
    assert told["link"]["measured"]
    assert told["link"]["bandwidth"] > 0
    facts = Facts.from_dict(told["facts"])
    assert facts.profile.parameters == 40 * 30 + 30 + 60 + 60 + 2
    assert 0 < facts.profile.ready[-1] <= facts.profile.backward
    assert [row["name"] for row in told["predictions"]]


def test_ranks_of_a_launcher_measure_the_link_between_them(tmp_path):
    script = tmp_path / "plan.py"
    script.write_text(
        "import sys, tyro\nfrom laconic.cli.commands import MARKERS\nfrom laconic.cli.plan import Plan\n"
        "tyro.cli(Plan, args=sys.argv[1:], config=MARKERS).run()\n"
    )
    told = tmp_path / "plan.json"
    words = ["--params", "20_000", "--step-seconds", "0.01", "--measure", "--methods", "topk", "--json", str(told)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # As torchrun tells ranks on two hosts.
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": str(port)}
    common |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *words, *QUICK],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | common | {"RANK": str(rank)},
        )
        for rank in range(2)
    ]
    (first, first_errors), (second, _) = (rank.communicate(timeout=100) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], first_errors
    assert "2 workers" in first
    assert "measured" in first
    assert "topk" in first
    assert second == ""
    # One rank a host: all that was measured is the link's.
    host = Facts.from_dict(json.loads(told.read_text())["facts"]).host
    assert (host.sum.latency, host.sum.per_byte, host.busy) == (0.0, 0.0, False)


def test_a_measured_link_has_the_nodes_that_were_asked_for(capsys):
    words = ("--params", "20_000", "--step-seconds", "0.01", "--measure", "--methods", "topk", "--json", "-")
    _plan(*words, "--workers", "8", "--gpus-per-node", "4", "--inside-bandwidth", "9000", *QUICK).run()
    told = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in told["predictions"]} == {"ddp", "ddp-fp16", "topk", "topk by nodes"}
    link = told["link"]
    assert (link["workers"], link["node_size"], link["inside_bandwidth"]) == (8, 4, 9000.0)
    assert link["measured"]
    assert link["inside_latency"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", "8"), "has started 4, got --workers 8"),
        (("--gpus-per-node", "4"), "has started 2, got --gpus-per-node 4"),
        (("--ranks-here", "3"), "has started 2, got --ranks-here 3"),
    ],
)
def test_what_a_launcher_decides_is_not_ignored(words, says, monkeypatch):
    monkeypatch.setattr("laconic.cli.plan.run_joined", lambda *_, **__: pytest.fail("ranks were started"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        _plan("--params", "1000", "--step-seconds", "1", "--measure", *words).run()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_the_sliders_change_the_table_and_the_chart(told, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    facts = Facts.from_dict(told["facts"])
    page = write_page(facts, Link(workers=8, bandwidth=20.0, latency=0.1), tmp_path / "plan.html")
    complaints: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_page()
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.on("console", lambda message: complaints.append(message.text))
        view.goto(page.as_uri())
        before = view.locator("#rows tr").all_inner_texts()
        curves = view.locator(".curve").evaluate_all("all => all.map(c => c.getAttribute('d'))")
        view.locator("#bandwidth").fill("4")
        view.locator("#workers").fill("0")
        after = view.locator("#rows tr").all_inner_texts()
        moved = view.locator(".curve").evaluate_all("all => all.map(c => c.getAttribute('d'))")
        rate, workers = (view.locator(f"#{name}-told").inner_text() for name in ("bandwidth", "workers"))
        view.locator(".swatch").first.click()
        left = view.locator(".curve").count()
        narrow = browser.new_page(viewport={"width": 380, "height": 800})
        narrow.goto(page.as_uri())
        overflow = narrow.evaluate("document.documentElement.scrollWidth - innerWidth")
        browser.close()
    assert complaints == []
    assert len(before) == len(facts.methods) == len(curves) == left + 1
    assert (rate, workers) == ("10 Gbit/s", "2 workers")
    assert before != after
    assert curves != moved
    assert overflow <= 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--params", "1000", "--step-seconds", "1"), "--measure"),
        (("--params", "1000", "--step-seconds", "1", "--bandwidth", "1", "--measure"), "both"),
        (("--params", "1000", "--step-seconds", "1", "--bandwidth", "1", "--methods", "nothing"), "nothing"),
        (("module", "nowhere.py:make", "--bandwidth", "1"), "no file nowhere.py"),
        (("--params", "1000", "--step-seconds", "1", "--bandwidth", "1", "--workers", "1"), "--workers 2"),
        (("--params", "1000", "--step-seconds", "1", "--bandwidth", "0"), "bandwidth"),
        (("--params", "0", "--step-seconds", "1", "--bandwidth", "1"), "--params 25_000_000"),
        (("--params", "1000", "--step-seconds", "1", "--measure", "--latency", "1"), "--latency"),
        (
            ("--params", "1000", "--step-seconds", "1", "--measure", "--workers", "6", "--gpus-per-node", "4"),
            "divides",
        ),
        (("--params", "1000", "--step-seconds", "1", "--measure", "--inside-bandwidth", "9"), "--gpus-per-node 4"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_ranks_start(words, says, monkeypatch, capsys):
    monkeypatch.setattr("laconic.cli.plan.run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    # What the options alone tell is said by the command line itself.
    with pytest.raises((ValueError, SystemExit)) as refused:
        _plan(*words).run()
    assert says in str(refused.value) + capsys.readouterr().err


def test_a_page_is_written_where_it_is_asked_for(told, tmp_path):
    path = write_page(Facts.from_dict(told["facts"]), Link(workers=2), tmp_path / "deep" / "plan.html")
    assert Path(path).read_text(encoding="utf-8").startswith("<!doctype html>")

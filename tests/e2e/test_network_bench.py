"""The network benchmark on hosts of its own: rates are kept, interfaces count, and nothing stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laconic.lab.network.crew import run_crew
from laconic.lab.network.hosts import missing, shaped_hosts
from laconic.lab.network.steps import BenchSteps
from unit.lab import network_works

pytestmark = pytest.mark.timeout(110)
MEGABITS = 200.0
PUT_UP = """
import time
from laconic.lab.network.hosts import shaped_hosts
with shaped_hosts(2):
    print("up", flush=True)
    time.sleep(60)
"""


def _names() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout


@pytest.fixture(autouse=True, scope="module")
def _hosts_can_be_had():
    if shutil.which("ip") is not None and "laconic-" in _names():
        pytest.skip("a benchmark has hosts up")
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    try:
        with shaped_hosts(1):
            pass
    except OSError as error:
        pytest.skip(f"no hosts here: {error}")


def test_a_short_run_keeps_the_rate_and_counts_what_the_interface_sent(tmp_path, capsys):
    file = tmp_path / "out.json"
    BenchSteps(
        hosts=(2,), rates=(MEGABITS,), layers=2, width=512, warmup=0, steps=2, rounds=1, peers=("ddp-fp16",),
        methods=("topk",), json=file,
    ).run()  # fmt: skip
    result = json.loads(file.read_text())
    [link] = result["links"]
    # Headers of TCP, IP and Ethernet are in the rate, too.
    assert 0.5 * MEGABITS < link["bits_per_second"] / 1e6 < 1.05 * MEGABITS
    rows = {row["peer"]: row for row in result["rows"]}
    assert [name for name, row in rows.items() if row["failed"]] == []
    sent = {name: row["interface_bytes"] for name, row in rows.items()}
    dense = 4 * result["parameters"]
    assert dense < sent["ddp"] < 1.2 * dense
    assert 0.5 * dense < sent["ddp-fp16"] < 0.6 * dense
    assert sent["alone"] < 500
    assert rows["topk"]["link_bytes"] < sent["topk"] < 0.02 * dense
    # No faster than the rate allows: the bucket holds little of it.
    assert rows["ddp"]["milliseconds"] > 0.9e3 * 8 * dense / (MEGABITS * 1e6)
    assert "200 Mbit/s" in capsys.readouterr().out
    assert "laconic-" not in _names()


def test_hosts_are_gone_after_an_error_and_one_benchmark_at_a_time_has_them():
    def fail() -> None:
        with shaped_hosts(2) as hosts:
            with pytest.raises(OSError, match="another benchmark has hosts up"), shaped_hosts(2):
                pass
            assert _names().count("laconic-") == 3
            with pytest.raises(ValueError, match="one rank a host"):
                run_crew(3, network_works.refuse, hosts=hosts, seconds=60)
            run_crew(2, network_works.say_and_sleep, hosts=hosts, seconds=0.2)

    with pytest.raises(RuntimeError, match="not done within"):
        fail()
    assert "laconic-" not in _names()


def test_hosts_are_gone_after_a_signal():
    source = Path(__file__).parents[2] / "src"
    child = subprocess.Popen(
        [sys.executable, "-c", PUT_UP], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(source)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        said = child.stdout.readline() or child.stderr.read()
        if b"another benchmark" in said:
            pytest.skip("a benchmark has put hosts up meanwhile")
        assert said == b"up\n"
        assert "laconic-" in _names()
        child.send_signal(signal.SIGHUP)
        # A second one must not break off the clearing up.
        time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) != 0
    finally:
        child.kill()
        child.wait()
        child.communicate()
    assert "laconic-" not in _names()

"""A run over a real interface: its counters have what stats say, packet headers and gloo's own words, no more."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The largest packet of honest_bytes.py: one that TCP repeats is counted twice.
PACKET_BYTES = 4000
# Gloo has six words a gather between two ranks.
WORDS_BYTES = 6 * 48


@pytest.fixture
def counted(monkeypatch):
    """Return what counts on hosts; skip where there can be none."""
    if os.geteuid() or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces want root, and ip and tc of iproute2")
    up = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    if up.returncode or "laconic-" in up.stdout:
        pytest.skip(f"network namespaces cannot be listed, or a benchmark has hosts up: {up.stderr or up.stdout}")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import honest_bytes

    from laconic.lab.network.hosts import shaped_hosts

    try:
        with shaped_hosts(1):
            pass
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    return honest_bytes.counted


def test_the_interface_sends_what_stats_say(counted):
    from honest_rank import Task

    [run] = counted(2, Task(methods=("topk:density=0.01",), steps=3))
    assert run["kinds"] == {"AllGather": run["collectives"]}
    assert run["collectives"] > 3, "several buckets a step"
    for host in run["each_host"]:
        said = host["link_bytes"] + WORDS_BYTES * run["collectives"]
        repeated = PACKET_BYTES * host["repeated_packets"]
        assert host["link_bytes"] < host["without_headers"]
        assert abs(host["without_headers"] - said) < 0.01 * said + repeated

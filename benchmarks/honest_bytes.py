"""Reported bytes against the interface's own counters: hosts in network namespaces, a rank each. Linux, as root.

    python benchmarks/honest_bytes.py --out benchmarks/results/honest_bytes.json
    python benchmarks/honest_bytes.py --table benchmarks/results/honest_bytes.json

Every kind of collective by itself, then a small model trained under DDP, several buckets a step. ``tx_bytes`` and
``tx_packets`` of each host's interface are read before and after; ``stats.link_bytes`` is what a rank says that it
sent. The counter has more: 66 bytes a packet (Ethernet 14, IP 20, TCP with time stamps 32), for packets that only
acknowledge, too; packets that TCP repeats; and gloo's own words of 48 bytes, a head for every message and calls
that one is ready. How many words a collective has is seen with small messages. Bytes are counted, nothing is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from honest_rank import Task
from rich.console import Console
from rich.table import Table

from laconic.lab.folder import write_json
from laconic.lab.machine import machine
from laconic.lab.network.crew import killed_in_the_end, place_of, wait_for
from laconic.lab.network.hosts import Hosts, shaped_hosts

METHODS = (
    "dense",
    "topk:density=0.01",
    "topk:density=0.001:values=int4",
    "sdagc:scope=layer:values=int4",
    "topk:density=0.01:values=int4:exchange=sharded",
    "powersgd",
)
ON_NODES = ("topk:density=0.01:values=int4",)
HEADER_BYTES = 14 + 20 + 32
_WORD_BYTES = 48
_ALLOWED = 0.03
_PORT = 29617
# What TCP repeats is counted twice: packets are small, so that it is little.
_PACKET_BYTES = 4_000
_LIMIT_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Options:
    """Count what methods send, twice: by themselves and by the interface."""

    out: Path = Path("honest_bytes.json")
    """Where every number goes."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    hosts: tuple[int, ...] = (2, 4)
    """Numbers of hosts, each with one rank."""
    methods: tuple[str, ...] = METHODS
    """Methods with their settings."""
    on_nodes: tuple[str, ...] = ON_NODES
    """Methods for two levels: two hosts with two ranks each."""
    steps: int = 5
    """Steps that count, and how often each collective is asked for."""


def main(options: Options) -> None:
    if options.table is None:
        result = machine("python benchmarks/honest_bytes.py", asdict(options)) | {"runs": []}
        result["options"].pop("table")
        for number in options.hosts:
            result["runs"] += counted(number, Task(methods=options.methods, steps=options.steps, requests=True))
        if options.on_nodes:
            result["runs"] += counted(2, Task(methods=options.on_nodes, steps=options.steps, node_size=2))
        take_words_off_(result["runs"])
        write_json(options.out, result)
    result = json.loads((options.table or options.out).read_text())
    Console(width=180).print(table(result))
    ratios = [run["ratio_without_gloo"] for run in result["runs"] if run["ratio_without_gloo"] is not None]
    off = max(abs(ratio - 1) for ratio in ratios)
    print(f"without headers and gloo's words, no ratio of {len(ratios)} is further than {off:.2%} from 1")
    sys.exit(off > _ALLOWED)


def counted(number: int, task: Task) -> list[dict[str, Any]]:
    """Have ranks do a task on so many hosts; return what each of its parts has sent."""
    with tempfile.TemporaryDirectory() as scratch, shaped_hosts(number, packet_bytes=_PACKET_BYTES) as hosts:
        folder, ranks = Path(scratch), number * task.node_size
        (folder / "task.json").write_text(json.dumps(asdict(task)))
        with killed_in_the_end() as processes:
            for rank in range(ranks):
                processes.append(_start(hosts, rank, ranks, task.node_size, folder))
            wait_for(processes, folder, _LIMIT_SECONDS)
        told = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    return [_judged(rows, task.node_size) for rows in zip(*told, strict=True)]


def take_words_off_(runs: list[dict[str, Any]]) -> None:
    """Leave in runs what gloo said beside the bytes themselves: as much with a small message as with a large."""
    small = [run for run in runs if run["what"].endswith(", small")]
    # Whole words: what TCP repeats is none of them.
    words = {
        (run["hosts"], kind): _WORD_BYTES * round(run["gloo_bytes_a_call"] / _WORD_BYTES)
        for run in small
        for kind in run["kinds"]
    }
    for run in runs:
        known = run["kinds"] and run not in small and all((run["hosts"], kind) in words for kind in run["kinds"])
        said = sum(words.get((run["hosts"], kind), 0) * count for kind, count in run["kinds"].items())
        run["gloo_bytes"] = said * run["hosts"] if known else None
        run["ratio_without_gloo"] = run["ratio"] - run["gloo_bytes"] / run["link_bytes"] if known else None


def _start(hosts: Hosts, rank: int, ranks: int, node_size: int, folder: Path) -> subprocess.Popen[bytes]:
    environment = place_of(rank, ranks, hosts, _PORT, node_size=node_size)
    command = [sys.executable, str(Path(__file__).with_name("honest_rank.py")), str(folder)]
    return hosts.start(rank // node_size, command, environment, folder / f"rank-{rank}.log")


def _judged(rows: tuple[dict[str, Any], ...], node_size: int) -> dict[str, Any]:
    """Put the ranks' numbers beside those of their hosts' interfaces."""
    hosts = []
    for first in range(0, len(rows), node_size):
        own = rows[first : first + node_size]
        # Ranks of a host look at the same interface.
        sent, packets, link = own[0]["tx_bytes"], own[0]["tx_packets"], sum(row["link_bytes"] for row in own)
        hosts.append({"tx_bytes": sent, "tx_packets": packets, "repeated_packets": own[0]["repeated_packets"],
                      "link_bytes": link, "without_headers": sent - HEADER_BYTES * packets})  # fmt: skip
    whole = {name: sum(host[name] for host in hosts) for name in hosts[0]}
    busiest = max(host["link_bytes"] for host in hosts)
    collectives = max(row["collectives"] for row in rows)
    return {
        "what": rows[0]["what"],
        "hosts": len(hosts),
        "ranks": len(rows),
        "wire_bytes": sum(row["wire_bytes"] for row in rows),
        "link_bytes": whole["link_bytes"],
        "tx_bytes": whole["tx_bytes"],
        "raw_ratio": whole["tx_bytes"] / whole["link_bytes"],
        "repeated_packets": whole["repeated_packets"],
        "header_share": HEADER_BYTES * whole["tx_packets"] / whole["tx_bytes"],
        "ratio": whole["without_headers"] / whole["link_bytes"],
        "worst_host": max(abs(host["without_headers"] - host["link_bytes"]) for host in hosts) / busiest,
        "kinds": rows[0]["kinds"],
        "collectives": collectives,
        "link_bytes_a_call": whole["link_bytes"] / max(1, sum(row["collectives"] for row in rows)),
        "gloo_bytes_a_call": (whole["without_headers"] - whole["link_bytes"]) / len(hosts) / collectives,
        "density": rows[0].get("density"),
        "entries": rows[0].get("entries"),
        "each_host": hosts,
    }


def table(result: dict[str, Any]) -> Table:
    """Lay out the ratios."""
    made = Table(title="what interfaces sent over what ranks say that they sent")
    columns = ("hosts", "what", "MB handed", "MB link", "MB interface", "ratio", "headers", "without them")
    for column in (*columns, "without gloo's", "worst host off", "link a call", "gloo a call", "repeated"):
        made.add_column(column, justify="left" if column == "what" else "right", no_wrap=column == "what")
    for run in result["runs"]:
        of_nodes = "" if run["ranks"] == run["hosts"] else ", two ranks a host"
        sizes = [f"{run[name] / 1e6:.3f}" for name in ("wire_bytes", "link_bytes", "tx_bytes")]
        last = "" if run["ratio_without_gloo"] is None else f"[bold]{run['ratio_without_gloo']:.4f}[/]"
        shares = [f"{run['raw_ratio']:.4f}", f"{run['header_share']:.1%}", f"{run['ratio']:.4f}", last]
        calls = [f"{run['link_bytes_a_call']:,.0f}", f"{run['gloo_bytes_a_call']:.0f}"]
        row = [str(run["hosts"]), run["what"] + of_nodes, *sizes, *shares, f"{run['worst_host']:.2%}"]
        made.add_row(*row, *calls, str(run["repeated_packets"]))
    return made


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

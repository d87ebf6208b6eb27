"""``laconic bench wire``: what positions, messages and exchanges cost in bits, time and volume."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from laconic import kernels
from laconic.arguments import check_share, check_whole
from laconic.codecs import by_name
from laconic.lab.machine import check_device, introduce, machine, save
from laconic.lab.rivals import missing, rivals
from laconic.lab.wire_bits import message_row, position_row
from laconic.lab.wire_cases import vectors
from laconic.lab.wire_speed import speed_rows
from laconic.lab.wire_volume import WAYS, volume_row

_BITS_NOTE = """least: log2 C(n, k) bits, layer by layer, the entropy of positions that may be anywhere. zstd: gaps
as 32-bit numbers, compressed; it gains where positions lie in clusters, and its size is known only afterwards."""
_VOLUME_NOTE = """Bytes that a worker hears in an exchange, its own share included, and in brackets what its
interface sends: its own share, 1/N of what is dealt out, stays at home. two_level: nodes of 8, what their leader
sends to other nodes; a worker that is no leader sends nothing there."""


@dataclass(frozen=True, kw_only=True)
class BenchWire:
    """Count the bits of coded positions and messages, time coding, and follow the volume from 2 to 256 workers."""

    device: str = "cpu"
    """Where to time coding: cpu or cuda."""
    threads: int = 2
    """Threads on CPU."""
    entries: int = 25_000_000
    """Entries of the vector that is one segment."""
    densities: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    """Shares of the entries to count the bits of, each in (0, 1)."""
    density: float = 0.001
    """Share of the entries in messages and times."""
    values: tuple[str, ...] = ("exact", "bfloat16", "int8", "int4", "int2", "sign")
    """How messages write values: laconic methods shows the words."""
    workers: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256)
    """Numbers of workers, in one process, to follow the volume; none: leave it out."""
    volume_entries: int = 1_000_000
    """Entries of each worker's vector there; 1% of them are chosen."""
    repeats: int = 11
    """Timed calls, of which the median counts."""
    layouts: bool = True
    """Also the layouts of ResNet-50 and of a large LSTM, and an LSTM's gradient."""
    json: Path | None = None
    """Where to write every number."""

    def __post_init__(self) -> None:
        check_device(self.device)
        # Smaller vectors would be sent whole.
        for name, least in (("threads", 1), ("entries", 2048), ("volume_entries", 2048), ("repeats", 1)):
            word = name.replace("_", "-")
            check_whole(name, getattr(self, name), least, f"Write --{word} {getattr(BenchWire, name)}.")
        for density in (*self.densities, self.density):
            check_share("density", density, "For 0.1% write 0.001.")
            if density == 1:
                raise ValueError(f"density must be below 1, got {density!r}. All entries need no positions.")
        for number in self.workers:
            check_whole("workers", number, 2, "They count workers: --workers 2 8 64.")
        for word in self.values:
            by_name(word)

    def run(self) -> None:
        """Measure, print the tables, and write the file."""
        torch.set_num_threads(self.threads)
        console, about = Console(), machine("laconic bench wire", asdict(self))
        kernels.warm(self.device, torch.float32, [torch.float32])
        about |= {"gpu": torch.cuda.get_device_name() if self.device == "cuda" else None}
        about |= {
            "kernels": kernels.in_use(self.device),
            "positions": {},
            "messages": {},
            "times": {},
            "volume": [],
        }
        introduce(console, about, f"{self.threads} threads")
        for name, make in vectors(self.entries, layouts=self.layouts).items():
            with console.status(f"{name}: coding"):
                vector = make()
                found = [position_row(vector, d, rivals()) for d in self.densities if d * vector.x.numel() >= 1]
                sizes = [message_row(vector, self.density, word, by_name(word)) for word in self.values]
                times = speed_rows(
                    vector, self.density, by_name("int4"), rivals(), device=self.device, repeats=self.repeats
                )
            about["positions"][name], about["messages"][name], about["times"][name] = found, sizes, times
            for table in (_position_table(name, found), _message_table(name, sizes), _time_table(name, times)):
                console.print(table)
            save(self.json, about)
        console.print(" ".join(_BITS_NOTE.split()), missing(), highlight=False, markup=False)
        for number in self.workers:
            with console.status(f"volume: {number} workers"):
                about["volume"].append(volume_row(number, self.volume_entries))
            save(self.json, about)
        if self.workers:
            console.print(_volume_table(about["volume"]))
            console.print(" ".join(_VOLUME_NOTE.split()), highlight=False)


def _position_table(name: str, rows: list[dict[str, Any]]) -> Table:
    others = list(rows[0]["others"]) if rows else []
    out = _table(f"{name}: bits a position", ["density", "entries", "laconic", "least", "over", *others])
    for row in rows:
        cells = [f"{row['density']:.3%}", f"{row['count']:,}", f"{row['bits']:.2f}", f"{row['least']:.2f}"]
        out.add_row(*cells, f"{row['over_least']:.3f}x", *(f"{row['others'][o]:.2f}" for o in others))
    return out


def _message_table(name: str, rows: list[dict[str, Any]]) -> Table:
    title = f"{name}: whole messages at {rows[0]['density']:.2%}" if rows else name
    out = _table(title, ["values", "entries", "known", "bytes", "bits\nan entry", "ratio"])
    for row in rows:
        counts = (f"{row[key]:,}" for key in ("sent", "known", "bytes"))
        out.add_row(row["values"], *counts, f"{row['bits_each']:.2f}", f"{row['ratio']:,.0f}x")
    return out


def _time_table(name: str, times: dict[str, Any]) -> Table:
    out = _table(f"{name}: times", ["what", "ms", "of the\nselection"])
    ours = ("select", "encode_positions", "decode_positions", "pack", "unpack", "copy_of_the_vector")
    rows = {what.replace("_", " "): times[what] for what in ours}
    rows["pack and unpack, int4"] = times["pack"] + times["unpack"]
    rows |= {f"{rival} positions": t["write"] + t["read"] for rival, t in times["others"].items()}
    for what, seconds in rows.items():
        out.add_row(what, f"{1e3 * seconds:.3f}", f"{seconds / times['select']:.1%}")
    return out


def _volume_table(rows: list[dict[str, Any]]) -> Table:
    out = _table(f"kB a worker, {rows[0]['chosen']:,} entries chosen by each", ["workers", *WAYS])
    for row in rows:
        cells = [row["ways"].get(way) for way in WAYS]
        texts = ("-" if c is None else f"{c['heard'] / 1e3:,.0f} ({c['sent'] / 1e3:,.0f})" for c in cells)
        out.add_row(str(row["workers"]), *texts)
    return out


def _table(title: str, headings: list[str]) -> Table:
    out = Table(title=title, box=box.SIMPLE, padding=(0, 1))
    for i, heading in enumerate(headings):
        out.add_column(heading, justify="right" if i else "left")
    return out

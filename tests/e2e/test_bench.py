"""``laconic bench``, small: what it writes down, what it prints, and errors that reach the user."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from laconic import kernels
from laconic.cli import main
from laconic.lab.bench_kernels import BenchKernels
from laconic.lab.bench_step import BenchStep
from laconic.lab.bench_wire import BenchWire
from laconic.lab.layouts import lstm, resnet50

OPS = [
    "accumulate_",
    "accumulate_ with momentum",
    "take_above_",
    "take_top_",
    "store_",
    "add_payloads_",
    "pipeline",
]
SELECTS = ("take_above_", "take_top_", "pipeline")
RIVALS = {"eager", "topk", "dgc", "chunked"}


def _laconic(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laconic", *words], capture_output=True, text=True, timeout=100, check=False
    )


def _positive(number: float) -> bool:
    return math.isfinite(number) and number > 0


def test_the_layouts_are_those_of_the_models():
    assert (len(resnet50()), sum(resnet50())) == (161, 25_557_032)
    assert (len(lstm()), sum(lstm())) == (11, 66_034_000)


def test_kernels_writes_down_every_op(tmp_path):
    path = tmp_path / "new" / "kernels.json"
    done = _laconic("bench", "kernels", "--sizes", "20000", "--repeats", "1", "--no-layouts", "--json", str(path))
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    assert result["kernels"] == kernels.in_use("cpu")
    assert f"kernels in use: {result['kernels']}" in done.stdout
    assert "compiled or found on disk in" in done.stdout
    assert result["command"].startswith("laconic bench kernels --sizes 20000 --repeats 1")
    assert result["cpu"]
    assert result["torch"]
    [layout] = result["layouts"]
    assert (layout["segments"], layout["entries"]) == (1, 20_000)
    assert _positive(layout["copy_bytes_per_second"])
    assert set(layout["extra_bytes"]) == {"laconic", "eager"}
    assert layout["extra_bytes_by"]
    assert [row["op"] for row in layout["ops"]] == OPS
    for row in layout["ops"]:
        assert set(row["times_faster"]) == (RIVALS if row["op"] in SELECTS else {"eager"})
        assert set(row["seconds"]) == {"laconic", *row["times_faster"]}
        numbers = [row["over_floor"], row["bytes"], *row["seconds"].values(), *row["times_faster"].values()]
        assert all(_positive(number) for number in numbers)
        if row["op"] in SELECTS:
            # The twins take the same; what a sample gives is wide of the 20 that are wanted.
            assert row["selected"]["laconic"] == row["selected"]["eager"]
            assert all(1 <= count <= 500 for count in row["selected"].values())


def test_step_writes_down_every_method(tmp_path):
    path = tmp_path / "step.json"
    small = ("--layers", "2", "--width", "64", "--steps", "2", "--rounds", "1")
    done = _laconic("bench", "step", *small, "--json", str(path))
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    assert result["kernels"] == kernels.in_use("cpu")
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["plain DDP", "no exchange", "dense", "topk", "sdagc", "plain DDP again"]
    for name, row in rows.items():
        assert name in done.stdout
        assert len(row["seconds"]) == 2
        assert all(_positive(row[key]) for key in ("milliseconds", "p10", "p90", "over_plain"))
    assert rows["no exchange"]["wire_bytes"] == 0
    # What plain DDP is said to hand over is what dense is counted to.
    assert rows["plain DDP"]["wire_bytes"] == rows["dense"]["wire_bytes"] == 4 * result["parameters"]
    for name in ("topk", "sdagc"):
        assert 0 < rows[name]["density"] < 1
        assert 0 < rows[name]["wire_bytes"] < rows["dense"]["wire_bytes"]
        assert rows[name]["skipped_steps"] == 0


@pytest.mark.parametrize(("words", "named"), [((), ["bench"]), (("bench",), ["kernels", "step"])], ids=str)
def test_help_names_the_commands(words, named, capsys):
    with pytest.raises(SystemExit) as done:
        main([*words, "--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"• {name}" in shown for name in named)


def test_wrong_input_ends_with_what_was_got_and_wanted(capsys):
    with pytest.raises(SystemExit) as left:
        main(["bench", "kernels", "--density", "0"])
    said = " ".join("".join(capsys.readouterr()).replace("│", " ").split())
    assert left.value.code == 2
    assert "density must be a number in (0, 1], got 0.0. For 0.1% write --density 0.001." in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"device": "tpu"}, "device must be cpu or cuda, got 'tpu'. Write --device cpu."),
        ({"sizes": (5, 0)}, "sizes must be a whole number of 1 or more, got 0."),
        ({"threads": 0}, "threads must be a whole number of 1 or more, got 0."),
        ({"repeats": 0}, "repeats must be a whole number of 1 or more, got 0."),
    ],
    ids=lambda given: str(given)[:12],
)
def test_kernels_refuses(wrong, said):
    with pytest.raises(ValueError, match="must be") as caught:
        BenchKernels(**wrong)
    assert said in str(caught.value)


def test_a_gpu_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"wants a GPU that torch can use, got none\. Write --device cpu\."):
        BenchKernels(device="cuda")


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"steps": 0}, {"density": 2.0}, {"methods": ("none",)}], ids=str)
def test_step_refuses(wrong):
    [value] = wrong.values()
    with pytest.raises(ValueError, match=str(value[0] if isinstance(value, tuple) else value)):
        BenchStep(**wrong)


def test_wire_writes_down_bits_times_and_volumes(tmp_path, capsys):
    path = tmp_path / "wire.json"
    words = "--entries 100000 --densities 0.001 0.1 --no-layouts --values exact int4 --repeats 1"
    volume = "--workers 2 8 --volume-entries 50000"
    main(["bench", "wire", *words.split(), *volume.split(), "--json", str(path)])
    result, printed = json.loads(path.read_text()), capsys.readouterr().out
    [rows] = result["positions"].values()
    assert [row["density"] for row in rows] == [0.001, 0.1]
    assert all(1 < row["over_least"] < 1.2 and set(row["others"]) == {"zstd", "roaring"} for row in rows)
    [messages] = result["messages"].values()
    assert [m["values"] for m in messages] == ["exact", "int4"]
    assert messages[0]["bytes"] - messages[1]["bytes"] == pytest.approx(28 / 8 * 100, abs=32)
    [times] = result["times"].values()
    assert all(
        _positive(times[key]) for key in ("select", "pack", "unpack", "encode_positions", "decode_positions")
    )
    two, eight = (row["ways"] for row in result["volume"])
    assert eight["gather"]["heard"] == 4 * two["gather"]["heard"]
    assert eight["sharded"]["heard"] < 2 * two["sharded"]["heard"]
    assert two["dense ring"]["sent"] == 4 * 50_000
    assert "bits a position" in printed
    assert "kB a worker" in printed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "tpu"),
        ("entries", 1000),
        ("densities", (1.0,)),
        ("density", 0),
        ("workers", (1,)),
        ("values", ("int5",)),
    ],
)
def test_wire_refuses_what_it_cannot_measure(field, value):
    with pytest.raises(ValueError, match="density" if field == "densities" else field):
        BenchWire(**{field: value})

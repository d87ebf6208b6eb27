"""``laconic compare``, small: equal footing, a summary, a page, and going on with what is missing."""

from __future__ import annotations

import json
import re

from commands import laconic_here
from laconic.lab.folder import read_lines

OPTIONS = ["--hidden", "16", "--length", "12", "--batch", "2", "--steps", "20", "--rate", "4", "--eval-every", "10"]


def test_methods_are_compared_on_equal_footing_and_a_second_call_makes_only_what_is_missing(capsys, tmp_path):
    out = tmp_path / "compared"
    local = "celgc:every=8:clip=None:send=topk+density=0.1+memory=update"
    methods = f"dense,topk:density=1.0:whole_below=0:memory=update,topk,{local}"
    laconic_here("compare", "lm", *OPTIONS, "--methods", methods, "--workers", "2", "--out", out)
    said = capsys.readouterr().out
    assert str(out / "report.html") in said.replace("\n", "")
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["methods"]) == methods.split(",")
    dense, whole, topk, celgc = summary["methods"].values()
    # Everything sent: the same training as dense but for rounding. So seeds, data and evaluation are equal.
    assert abs(dense["final"] - whole["final"]) < 1e-4
    assert (dense["ratio"], dense["steps"]) == (1.0, 20)
    assert topk["ratio"] > 5
    # Two rounds of 8 steps, and what is left.
    assert [result["syncs"] for result in (dense, whole, topk, celgc)] == [20, 20, 20, 3]
    assert celgc["ratio"] > 20 / 3 > 5
    assert re.search(r"method .* ratio +syncs +density", said)
    assert "Quality against ratio" in (out / "report.html").read_text()
    assert "<html" in (out / "report.html").read_text()[:200].lower()

    kept = (out / "dense" / "result.json").read_bytes()
    (out / "topk" / "result.json").unlink()
    laconic_here("compare", "--resume", out, "--json")
    told = json.loads(capsys.readouterr().out)
    same = ("weights_sha256", "final", "best", "scores", "train_loss", "density")
    assert {key: told["methods"]["topk"][key] for key in same} == {key: topk[key] for key in same}
    assert (out / "dense" / "result.json").read_bytes() == kept
    assert read_lines(out / "topk" / "steps.jsonl")[-1]["step"] == 20

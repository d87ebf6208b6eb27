"""``laconic compare``, small: equal footing, a summary, a page, and going on with what is missing."""

from __future__ import annotations

import json

from commands import laconic
from laconic.lab.folder import read_lines

OPTIONS = ["--hidden", "16", "--length", "12", "--batch", "2", "--steps", "20", "--rate", "4"]


def test_methods_are_compared_on_equal_footing_and_a_second_call_makes_only_what_is_missing(tmp_path):
    out = tmp_path / "compared"
    methods = "dense,topk:density=1.0:whole_below=0:memory=update,topk"
    done = laconic("compare", "lm", *OPTIONS, "--methods", methods, "--workers", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert str(out / "report.html") in done.stdout.replace("\n", "")
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["methods"]) == methods.split(",")
    dense, whole, topk = summary["methods"].values()
    # Everything sent: the same training as dense but for rounding. So seeds, data and evaluation are equal.
    assert abs(dense["final"] - whole["final"]) < 1e-4
    assert (dense["ratio"], dense["steps"]) == (1.0, 20)
    assert topk["ratio"] > 5
    assert "<html" in (out / "report.html").read_text()[:200].lower()

    kept = (out / "dense" / "result.json").read_bytes()
    (out / "topk" / "result.json").unlink()
    again = laconic("compare", "--resume", out, "--json")
    assert again.returncode == 0, again.stderr
    said = json.loads(again.stdout)
    same = ("weights_sha256", "final", "best", "scores", "train_loss", "density")
    assert {key: said["methods"]["topk"][key] for key in same} == {key: topk[key] for key in same}
    assert (out / "dense" / "result.json").read_bytes() == kept
    assert read_lines(out / "topk" / "steps.jsonl")[-1]["step"] == 20

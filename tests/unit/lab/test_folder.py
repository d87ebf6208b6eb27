"""A run's folder: nothing half there, nothing lost, nothing of a later step left when a run goes back."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from laconic.lab.folder import RunFolder, finite, read_lines


def _begun(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.begin({"method": "dense"}, {"torch": "2"}, from_step=0)
    return folder


def test_lines_are_kept_up_to_the_step_that_a_run_goes_on_from(tmp_path):
    folder = _begun(tmp_path)
    for step in (10, 20, 30):
        folder.add({"step": step, "loss": 1.0 / step})
    folder.finish({"finished": True})
    folder.begin({"method": "dense"}, {}, from_step=20)
    assert [line["step"] for line in read_lines(folder.path / "steps.jsonl")] == [10, 20]
    assert folder.result() is None, "a run that goes on has no result yet"


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    folder = _begun(tmp_path)
    folder.add({"step": 10})
    with (folder.path / "steps.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert read_lines(folder.path / "steps.jsonl") == [{"step": 10}]


def test_what_is_not_finite_is_null_so_that_every_reader_of_json_can_read_it(tmp_path):
    folder = _begun(tmp_path)
    folder.add({"step": 10, "loss": float("nan"), "layers": {"w": float("inf")}})
    text = (folder.path / "steps.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"step": 10, "loss": None, "layers": {"w": None}}
    assert finite((1, float("-inf"), "nan")) == [1, None, "nan"]


def test_a_checkpoint_counts_once_it_is_sealed_and_the_last_two_are_kept(tmp_path):
    folder = _begun(tmp_path)
    assert folder.latest() == 0
    for step in (5, 10, 15):
        folder.save_rank(step, "rank-00000", {"x": torch.full((2,), step)})
        assert folder.latest() == step - 5
        folder.seal(step)
    assert folder.latest() == 15
    assert folder.load_rank(10, "rank-00000")["x"].tolist() == [10, 10]
    assert len(list(folder.path.glob("checkpoints/step-*"))) == 2
    assert list(folder.path.rglob("*.half")) == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty"])
def test_a_part_that_was_damaged_is_refused_and_without_it_the_one_before_counts(damage, tmp_path):
    folder = _begun(tmp_path)
    for step in (5, 10):
        folder.save_rank(step, "rank-00000", {"x": torch.full((400,), float(step))})
        folder.seal(step)
    part = folder.path / "checkpoints" / "step-00000010" / "rank-00000.pt"
    raw = bytearray(part.read_bytes())
    # In the middle lie the numbers, which a reader would take as they are.
    raw[len(raw) // 2] ^= 1
    part.write_bytes({"flipped": raw, "cut": raw[:-9], "longer": raw + b"x", "empty": b""}[damage])
    with pytest.raises(
        ValueError, match=r"rank-00000.pt is damaged: .* Remove .*step-00000010, and the run goes on"
    ):
        folder.load_rank(10, "rank-00000")
    shutil.rmtree(part.parent)
    assert folder.latest() == 5
    assert folder.load_rank(5, "rank-00000")["x"][0] == 5


def test_a_part_without_its_digest_is_refused(tmp_path):
    folder = _begun(tmp_path)
    folder.save_rank(5, "shared", {"x": 1})
    (folder.path / "checkpoints" / "step-00000005" / "shared.sha256").unlink()
    with pytest.raises(ValueError, match=r"shared.pt is damaged"):
        folder.load_rank(5, "shared")


@pytest.mark.parametrize("other", [(5, "rank-00001"), (10, "rank-00000")])
def test_a_part_of_another_rank_or_step_is_refused(other, tmp_path):
    folder = _begun(tmp_path)
    for step, name in [(5, "rank-00000"), (5, "rank-00001"), (10, "rank-00000")]:
        folder.save_rank(step, name, {"x": 1})
    here = folder.path / "checkpoints" / "step-00000005"
    for end in ("pt", "sha256"):
        shutil.copy(
            folder.path / "checkpoints" / f"step-{other[0]:08d}" / f"{other[1]}.{end}", here / f"rank-00000.{end}"
        )
    with pytest.raises(ValueError, match=r"is another part, or of another version: it says that it is \["):
        folder.load_rank(5, "rank-00000")


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no spec.json: it is not the folder of a run"):
        RunFolder(tmp_path).spec()
    with pytest.raises(FileNotFoundError, match=r"no rank-00003.pt .* Share the folder between machines"):
        _begun(tmp_path).load_rank(7, "rank-00003")

"""Local steps with a GradScaler: a rank that skips a step alone is no earlier at the next sync than the others."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import laconic
from covering import in_turn
from models import Mlp, attach, digest, loss, weights, wrap

KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])
CLIP = pytest.mark.parametrize("clip", [False, True], ids=["step", "unscale_clip_step"])
METHODS = {
    "celgc": laconic.celgc(3, clip=0.2),
    "max": laconic.celgc(3, clip=0.2, norm_by="max"),
    "some sent": laconic.celgc(3, send=laconic.topk(0.05, whole_below=0)),
    "averaged": laconic.celgc(3, optimizer_state="average"),
    "diloco": laconic.diloco(3),
    "streamed": laconic.diloco(6, fragments=2, delay=1),
    "update": laconic.celgc(3, clip=0.2, norm_of="update"),
}
STEPS, SCALE = 12, 2.0**10
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
}


def _build(group, kind, method, optimizer, scaler):
    torch.manual_seed(1)
    model = wrap(Mlp(), group) if kind == "ddp" else Mlp()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    return model, optimizer, attach(model, optimizer, method, group, scaler=scaler)


def _scaled(group, kind, method, optimizer, clip, bad, enabled=True):
    """Train with infinities on rank 1 in the steps ``bad``; return what each step did, and the numbers."""
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000, enabled=enabled)
    model, optimizer, link = _build(group, kind, method, optimizer, scaler)
    rank, seen, scales, moved = dist.get_rank(group), [], [], []
    for step in range(STEPS):
        before = digest(weights(model))
        syncs = link.stats.syncs
        scaler.scale(loss(model, rank, step) * (torch.inf if rank == 1 and step in bad else 1.0)).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
        scales.append(scaler.get_scale())
        # A sync moves a model too.
        moved.append(seen[-1] != before if link.stats.syncs == syncs else None)
    link.finish()
    counts = {float(entry["step"]) for entry in optimizer.state_dict()["state"].values() if "step" in entry}
    stats = link.stats
    return {
        "seen": seen,
        "scales": scales,
        "moved": moved,
        "skipped": stats.skipped_steps,
        "steps": (stats.steps, stats.syncs),
        "counts": counts,
        "end": digest(weights(model)),
    }


@KINDS
@CLIP
@pytest.mark.parametrize(
    ("name", "optimizer"), [("celgc", "sgd"), ("celgc", "adam"), ("averaged", "adam")], ids=str
)
def test_an_infinity_between_syncs_is_skipped_by_its_rank_alone(pool, kind, clip, name, optimizer):
    # The story of pytorch issue 76282: counters of steps that drift apart, ranks that average unlike steps, and
    # one that waits for a partner who has finished. Here ranks count attempts.
    good, bad = pool.run(2, _scaled, kind, METHODS[name], optimizer, clip, [4])
    assert (good["skipped"], bad["skipped"]) == (0, 1)
    assert good["scales"] == [SCALE] * STEPS
    assert bad["scales"] == [SCALE] * 4 + [SCALE / 2] * (STEPS - 4)
    assert good["moved"] == [True, True, None] * 4
    assert bad["moved"] == [True, True, None, True, False, None, *[True, True, None] * 2]
    assert good["steps"] == bad["steps"] == (STEPS, STEPS // 3)
    assert good["seen"][2::3] == bad["seen"][2::3]
    assert good["end"] == bad["end"]
    if optimizer == "adam":
        assert (good["counts"], bad["counts"]) == ({float(STEPS)}, {float(STEPS - 1)})


BAD = [[0], [2], [3, 4, 5], [11], list(range(STEPS))]


# Each of seven methods at two of five places.
@pytest.mark.parametrize(("name", "bad"), in_turn([*METHODS, *METHODS], BAD))
def test_wherever_it_is_all_ranks_are_in_every_sync(pool, name, bad):
    good, other = pool.run(2, _scaled, "plain", METHODS[name], "sgd", False, bad)
    assert (good["skipped"], other["skipped"]) == (0, len(bad))
    assert good["steps"] == other["steps"]
    assert good["end"] == other["end"]
    if name != "streamed":
        assert good["seen"][2::3] == other["seen"][2::3]


@KINDS
@pytest.mark.parametrize(
    "method", [laconic.episode(3, clip=0.2), laconic.episode_pp(3, clip=0.2)], ids=lambda m: m.name
)
@pytest.mark.parametrize("bad", [[0], [1], [4], [0, 1, 2, 3, 4, 5]], ids=str)
def test_an_infinity_in_a_batch_that_measures_is_missed_by_nobody(pool, kind, method, bad):
    # EPISODE measures in step 0, 4 and 8 and syncs after 3, 7 and 11; EPISODE++ measures in the first three.
    good, other = pool.run(2, _scaled, kind, method, "sgd", False, bad)
    assert (good["skipped"], other["skipped"]) == (0, len(bad))
    assert other["scales"][-1] == SCALE / 2 ** len(bad)
    assert good["steps"] == other["steps"]
    syncs = [3, 7, 11] if method.name == "episode" else [5, 8, 11]
    assert [good["seen"][i] for i in syncs] == [other["seen"][i] for i in syncs]
    assert good["end"] == other["end"]


@KINDS
@CLIP
def test_while_gradients_are_averaged_all_skip_together(pool, kind, clip):
    method = laconic.post_local(3, start=6, clip=0.3)
    good, bad = pool.run(2, _scaled, kind, method, "sgd", clip, [2, 7])
    assert good["scales"] == [SCALE] * 2 + [SCALE / 2] * (STEPS - 2)
    assert bad["scales"] == [SCALE] * 2 + [SCALE / 2] * 5 + [SCALE / 4] * (STEPS - 7)
    assert (good["skipped"], bad["skipped"]) == (1, 2)
    assert good["seen"][:6] == bad["seen"][:6]
    assert good["seen"][1] == good["seen"][2]
    assert good["seen"][6] != bad["seen"][6]
    assert good["seen"][8::3] == bad["seen"][8::3]
    assert good["end"] == bad["end"]


def _unscaled(group, kind, method):
    model, optimizer, link = _build(group, kind, method, "sgd", None)
    seen = []
    for step in range(STEPS):
        loss(model, dist.get_rank(group), step).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    link.finish()
    return seen


@KINDS
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("name", ["celgc", "streamed"])
def test_a_scale_does_not_show_in_the_bits(pool, kind, name, enabled):
    # A power of two; clipping sees gradients without it.
    ours = pool.run(2, _scaled, kind, METHODS[name], "sgd", False, [], enabled)
    assert [o["seen"] for o in ours] == pool.run(2, _unscaled, kind, METHODS[name])


def _fused(group):
    with pytest.raises(ValueError, match=r"fused optimizer undoes the loss scale.*fused=False"):
        _build(group, "plain", METHODS["celgc"], "fused", torch.amp.GradScaler("cpu"))
    _build(group, "plain", METHODS["celgc"], "fused", torch.amp.GradScaler("cpu", enabled=False))


def test_a_fused_optimizer_is_refused_before_any_rank_talks(pool):
    pool.run(1, _fused)

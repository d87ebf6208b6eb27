"""Words for peers, and peers of a file."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from laconic.lab.peers import SHIPPED, Ours, peer_of, torchft_diloco, torchft_local
from laconic.lab.peers.torchft_manager import patience

OWN = """
from dataclasses import dataclass
from laconic.lab.peers import Prepared

@dataclass(frozen=True)
class Own:
    name: str = "own"
    period: int = 3

    def missing(self):
        return ""

    def prepare(self, module, optimizer):
        return Prepared(model=module, optimizer=optimizer)

PEER = Own()
"""


@pytest.mark.parametrize("word", SHIPPED)
def test_a_shipped_name_is_a_peer(word):
    peer = peer_of(word)
    assert peer.name.split(":")[0] == word
    assert peer.period >= 1
    assert peer_of(peer.name) == peer
    assert peer.missing() == "" or "pip install" in peer.missing()


def test_a_number_stands_behind_a_colon():
    assert peer_of("post-local:16").period == 16
    assert peer_of("torchft-diloco:8").period == 8
    assert peer_of("powersgd-hook:4").name == "powersgd-hook:4"
    for wrong in ("post-local:0", "post-local:x", "powersgd-hook:", "torchft-local:-1"):
        with pytest.raises(ValueError, match="takes a whole number of 1 or more"):
            peer_of(wrong)


def test_a_method_is_a_peer_with_its_period():
    topk, celgc = peer_of("topk:density=0.001"), peer_of("celgc:every=8")
    assert isinstance(topk, Ours)
    assert topk.method.compressor.density == 0.001
    assert (topk.period, celgc.period) == (1, 8)


def test_a_file_brings_a_peer_of_its_own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    assert (peer_of(str(path)).name, peer_of(str(path)).period) == ("own", 3)
    path.write_text("PEER = 3")
    with pytest.raises(ValueError, match=r"own.py must define PEER.*lacks name, period, missing, prepare"):
        peer_of(str(path))
    path.write_text("")
    with pytest.raises(ValueError, match="must define PEER"):
        peer_of(str(path))
    with pytest.raises(FileNotFoundError, match="no file"):
        peer_of(str(tmp_path / "none.py"))


@pytest.mark.parametrize("module", [torchft_local, torchft_diloco])
def test_torchft_is_shut_down_where_its_context_cannot_be_entered(module, monkeypatch):
    told: list[str] = []

    @contextmanager
    def managed():
        try:
            yield "manager"
        finally:
            told.append("shut down")

    def refuse(manager, *_, **__):
        told.append(manager)
        raise TypeError("no such setting")

    monkeypatch.setattr(module, "managed", managed)
    monkeypatch.setattr(module, "import_module", lambda _: SimpleNamespace(LocalSGD=refuse, DiLoCo=refuse))
    model = torch.nn.Linear(2, 2)
    peer = peer_of(module.__name__.rsplit(".", 1)[1].replace("_", "-"))
    with pytest.raises(TypeError, match="no such setting"):
        peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert told == ["manager", "shut down"]


def test_torchft_waits_as_long_as_the_group_does():
    waits = timedelta(seconds=7)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=waits)
    try:
        assert patience() == waits
    finally:
        dist.destroy_process_group()


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(ValueError, match=r"no peer is called 'dpp'. There are alone, ddp, .*laconic methods"):
        peer_of("dpp")

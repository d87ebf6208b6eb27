"""Words for peers, and peers of a file."""

from __future__ import annotations

import pytest

from laconic.lab.peers import SHIPPED, Ours, peer_of

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


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(ValueError, match=r"no peer is called 'dpp'. There are alone, ddp, .*laconic methods"):
        peer_of("dpp")

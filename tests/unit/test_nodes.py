"""Where node sizes come from: a mesh, the launcher, or the word of the user."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

import laconic
from contracts.bad_settings import BAD_SETTINGS, refusal
from laconic.collectives import members
from laconic.compressors import RandomK, TopK
from laconic.exchanges import GatherMean, ReduceMean, TwoLevel
from laconic.integrations.nodes import launched_node_size, on_nodes
from laconic.types import Envelope
from lockstep.world import MODEL


def _mesh(rows):
    return SimpleNamespace(mesh=torch.tensor(rows))


def _method(node_size):
    method = laconic.topk(0.1)
    return laconic.Method(**{**vars(method), "exchange": TwoLevel(node_size=node_size)})


def test_a_mesh_of_nodes_and_ranks_says_the_node_size():
    assert TwoLevel.of_mesh(_mesh([[0, 1, 2], [3, 4, 5]])) == TwoLevel(inner=GatherMean(), node_size=3)
    assert TwoLevel.of_mesh(_mesh([[4], [5]]), ReduceMean()) == TwoLevel(inner=ReduceMean(), node_size=1)


@pytest.mark.parametrize("rows", [[[0, 2], [1, 3]], [[2, 3], [0, 1]], [[1, 0], [3, 2]], [[0, 1], [4, 5]]], ids=str)
def test_a_mesh_whose_rows_are_not_consecutive_ranks_is_refused(rows):
    with pytest.raises(ValueError, match=r"mesh must have consecutive ranks .*\. Start them node by node"):
        TwoLevel.of_mesh(_mesh(rows))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [[[0, 1], [2, 3]]], [[]]], ids=str)
def test_a_mesh_of_another_number_of_dimensions_is_refused(rows):
    with pytest.raises(ValueError, match=r"mesh must have two dimensions.*\. Write init_device_mesh"):
        TwoLevel.of_mesh(_mesh(rows))


def test_the_launcher_says_how_many_ranks_a_node_has():
    assert launched_node_size({"LOCAL_WORLD_SIZE": "8"}) == 8
    with pytest.raises(ValueError, match=r"LOCAL_WORLD_SIZE is not set\. Start with torchrun, or write TwoLevel"):
        launched_node_size({})
    for told in ("0", "-1", "two", ""):
        with pytest.raises(ValueError, match=r"LOCAL_WORLD_SIZE must be a whole number .*got .*\. Start with"):
            launched_node_size({"LOCAL_WORLD_SIZE": told})


def test_the_launcher_is_asked_only_where_nobody_else_has_said():
    launched = {"LOCAL_WORLD_SIZE": "2"}
    assert on_nodes(_method(None), range(4), launched).exchange.node_size == 2
    assert on_nodes(_method(4), range(4), launched).exchange.node_size == 4
    assert on_nodes(laconic.topk(0.1), range(4), {}) == laconic.topk(0.1)
    assert on_nodes(_method(2), [1, 3], {}).exchange.node_size == 2


def test_nodes_that_the_ranks_do_not_fill_are_refused():
    with pytest.raises(ValueError, match=r"node_size must be .* 6 ranks, got 4\. Start"):
        on_nodes(_method(4), range(6), {})
    with pytest.raises(ValueError, match=r"group has the ranks \[1, 3\].*TwoLevel\(node_size=\.\.\.\)"):
        on_nodes(_method(None), [1, 3], {"LOCAL_WORLD_SIZE": "2"})
    with pytest.raises(ValueError, match=r"5 ranks cannot lie in nodes of 2\. Start"):
        next(TwoLevel(node_size=2).steps(torch.zeros(27), MODEL, TopK(density=0.1), Envelope(step=0, world_size=5)))


def test_what_two_level_says_of_itself_is_what_its_inner_exchange_says():
    assert (TwoLevel().lossless, TwoLevel().tells) == (GatherMean().lossless, GatherMean().tells)
    assert TwoLevel(inner=ReduceMean()).tells is ReduceMean().tells
    TwoLevel(inner=ReduceMean()).check(RandomK(density=0.1))
    with pytest.raises(ValueError, match=r"two_level is between nodes .*reduce_mean .*topk.*\. Use GatherMean"):
        TwoLevel(inner=ReduceMean()).check(TopK(density=0.1))


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS[TwoLevel])
def test_a_bad_setting_is_refused(field, value):
    with pytest.raises((TypeError, ValueError), match=refusal(field, value)):
        TwoLevel(**{field: value})


def test_every_setting_is_examined():
    assert {field for field, _ in BAD_SETTINGS[TwoLevel]} == {f.name for f in fields(TwoLevel)}


def test_every_rank_is_in_one_node_and_each_node_has_one_leader():
    for ranks, size in ((1, 1), (6, 1), (6, 2), (6, 3), (6, 6)):
        shape = {"world_size": ranks, "node_size": size}
        nodes = {members("node", rank=rank, **shape) for rank in range(ranks)}
        assert sorted(rank for node in nodes for rank in node) == list(range(ranks))
        assert list(members("leaders", rank=0, **shape)) == sorted(node[0] for node in nodes)
        assert members("world", rank=0, **shape) == range(ranks)

"""What is measured within a host and what between hosts, with a clock that is told."""

from __future__ import annotations

from math import inf

import pytest
import torch
import torch.distributed as dist

from laconic.plan import Link
from laconic.plan.facts import Cost
from laconic.plan.hosts import Crowd, Heard, check_hosts, listen
from laconic.plan.measure_link import Measured, measure

CPU = torch.device("cpu")
GIVEN = Link(workers=8, bandwidth=100.0, latency=0.5, node_size=2)
FREE = Cost(latency=0.0, per_byte=0.0)
# A byte takes the host 1 ns, which is 8 Gbit/s, and 80 ns between hosts, which is 100 Mbit/s.
INSIDE, BETWEEN = Cost(latency=1e-4, per_byte=1e-9), Cost(latency=2e-3, per_byte=80e-9)
THIS_HOST = object()


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, bool]]:
    """Notes every collective that is timed: its kind, and whether within the group of this host."""
    out = []

    def told(kind, *, device, group, half):
        out.append((kind, group is THIS_HOST))
        return Measured(kind=kind, half=half, seconds={64: 1.0}, cost=INSIDE if group is THIS_HOST else BETWEEN)

    monkeypatch.setattr("laconic.plan.hosts.measure", told)
    monkeypatch.setattr("laconic.plan.hosts.ping_pong", lambda *, ranks: 1e-3)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 8)
    return out


def _listen(link: Link = GIVEN, *, here: int, several: bool = True, measured: bool = False) -> Heard:
    crowd = Crowd(group=THIS_HOST, here=here, several=several)
    return listen(link, crowd, measured=measured, busy=True, device=CPU)


def test_a_rank_alone_on_its_host_costs_it_nothing_that_could_be_measured(asked):
    heard = _listen(here=1)
    assert asked == []
    assert (heard.host.gather, heard.host.sum, heard.host.half, heard.host.busy) == (FREE, FREE, FREE, False)
    assert heard.link is GIVEN


def test_a_link_between_hosts_of_one_rank_is_measured_between_them_alone(asked):
    heard = _listen(here=1, measured=True)
    assert asked == [("gather", False), ("sum", False)]
    assert heard.host.sum == FREE
    assert heard.link.bandwidth == pytest.approx(100.0)
    assert heard.link.latency == pytest.approx(2.0)
    assert heard.link.inside_bandwidth == inf
    assert heard.link.measured


def test_the_hosts_own_part_is_measured_within_it(asked):
    heard = _listen(here=2)
    assert asked == [("gather", True), ("sum", True), ("sum", True)]
    assert (heard.host.sum, heard.host.busy) == (INSIDE, True)
    assert heard.link is GIVEN


def test_what_stays_inside_a_node_is_not_free_on_a_measured_link(asked):
    heard = _listen(here=2, measured=True)
    assert asked[3:] == [("gather", False), ("sum", False)]
    assert heard.host.sum == INSIDE
    assert heard.link.bandwidth == pytest.approx(100.0)
    assert heard.link.inside_bandwidth == pytest.approx(8000.0)
    assert heard.link.inside_latency == pytest.approx(0.1)
    assert (heard.link.workers, heard.link.node_size) == (8, 2)
    assert {"sum", "link sum"} <= set(heard.seconds)


@pytest.mark.usefixtures("asked")
def test_what_is_given_for_the_inside_counts():
    given = Link(workers=8, node_size=2, inside_bandwidth=5e5)
    assert _listen(given, here=2, measured=True).link.inside_bandwidth == 5e5


def test_on_one_host_one_measurement_is_both(asked):
    heard = _listen(here=2, several=False, measured=True)
    assert asked == [("gather", False), ("sum", False), ("sum", False)]
    assert heard.host.sum == BETWEEN
    assert heard.link.bandwidth == heard.link.inside_bandwidth == pytest.approx(100.0)


@pytest.mark.parametrize(
    "told",
    [
        [(2, 0), (2, 1), (1, 0)],
        [(1, 0), (2, 0), (2, 1)],
        [(2, 0), (2, 1), (2, 0)],
        # One rank of each host in turn, as srun deals them out if it is told to.
        [(2, 0), (2, 0), (2, 1), (2, 1)],
    ],
)
def test_hosts_that_are_unlike_are_refused(told):
    with pytest.raises(ValueError, match="as many ranks"):
        check_hosts(told)


def test_one_rank_has_no_link_to_measure(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1)
    with pytest.raises(ValueError, match="two ranks at least, got 1"):
        measure("sum", device=CPU)

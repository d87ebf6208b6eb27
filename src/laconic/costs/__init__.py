"""What a message costs. ``by_name`` has a word for each ready one."""

from __future__ import annotations

from collections.abc import Callable

from laconic.costs.models import Affine, Bits, Cost, Packets, Seconds

__all__ = ["COSTS", "Affine", "Bits", "Cost", "Packets", "Seconds", "by_name"]

COSTS: dict[str, Callable[[], Cost]] = {
    "bits": Bits,
    "packets": Packets.ethernet_tcp,
    "udp": Packets.ethernet_udp,
    "802.15.4": Packets.ieee_802_15_4,
    "paper": Packets.cat_paper,
    "seconds": Seconds,
}


def by_name(name: str) -> Cost:
    """Return the named cost; ``packets`` are those of TCP over Ethernet, ``seconds`` are measured while training.

    >>> by_name("paper")
    Packets(payload_bytes=512, per_packet=576, fixed=64)
    """
    if not isinstance(name, str) or name not in COSTS:
        raise ValueError(f"no cost is called {name!r}. There are: {', '.join(COSTS)}.")
    return COSTS[name]()

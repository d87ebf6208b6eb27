"""Networks that are not there: what a collective takes on them, and ranks that train over them in one process."""

from laconic.sim.network import Cable, Call, Change, Network

__all__ = ["Cable", "Call", "Change", "Network"]

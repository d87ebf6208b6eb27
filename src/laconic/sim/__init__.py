"""Networks that are not there: what a collective takes on them, and ranks that train over them in one process."""

from laconic.sim.network import Cable, Call, Change, Network
from laconic.sim.pace import Outage, Pace
from laconic.sim.world import World, group_of_one

__all__ = ["Cable", "Call", "Change", "Network", "Outage", "Pace", "World", "group_of_one"]

"""Who does the talking: ``torch.distributed``, or N ranks in one process."""

from laconic.transports.lockstep import Lockstep
from laconic.transports.process_group import ProcessGroupTransport

__all__ = ["Lockstep", "ProcessGroupTransport"]

"""Where laconic meets a training loop."""

from laconic.integrations.attach import attach
from laconic.integrations.link import Link
from laconic.integrations.saved import LinkState

__all__ = ["Link", "LinkState", "attach"]

"""Where laconic meets a training loop."""

from laconic.integrations.attach import attach
from laconic.integrations.link import Link

__all__ = ["Link", "attach"]

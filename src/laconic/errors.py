"""What laconic raises.

::

    LaconicError
    ├── GroupError      ranks disagree: methods, models, settings or steps differ
    ├── ExchangeError   an exchange did not come back: a peer died, stalled or left
    └── WireError       bytes from outside are not a message of ours

A wrong argument is a plain ``ValueError`` or ``TypeError``, raised where it is given, before any rank talks.
"""


class LaconicError(RuntimeError):
    """The root of what laconic raises while training."""


class GroupError(LaconicError):
    """Ranks that must agree do not; the message names both sides."""


class ExchangeError(LaconicError):
    """An exchange did not come back; the message says which one was waiting, and since which step."""


class WireError(LaconicError):
    """A message is malformed: wrong size, count or position."""


def loss_untold(method: str) -> LaconicError:
    """Return what to raise where a method follows the loss, and nobody has told it one."""
    return LaconicError(
        f"the law of {method} follows the loss, and none was told. Call link.observe(loss) before loss.backward()."
    )


def broken_off(step: int) -> LaconicError:
    """Return what to raise where a step was begun, did not come to its end, and another is asked for."""
    return LaconicError(
        f"step {step} was begun and never ended: a backward pass or an exchange broke off. Detach, wrap the model "
        f"in a new DistributedDataParallel, attach that and load the last checkpoint."
    )

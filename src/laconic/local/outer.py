"""What becomes of the mean drift: the step that the anchor takes."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.arguments import check_number


@dataclass(frozen=True, kw_only=True)
class OuterStep:
    """The mean drift d as the gradient of an outer SGD.

    velocity = momentum * velocity + d, and the anchor goes by rate * (d + momentum * velocity), or by
    rate * velocity without ``nesterov``. Rate 1 without momentum is plain averaging of models.
    """

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = True

    def __post_init__(self) -> None:
        check_number("rate", self.rate, 0.0, "Plain averaging is rate=1, DiLoCo's is 0.7.")
        check_number("momentum", self.momentum, 0.0, "For none write 0; DiLoCo's is 0.9.")
        if self.rate == 0 or self.momentum >= 1:
            raise ValueError(
                f"an outer step wants a rate over 0 and momentum in [0, 1), got rate {self.rate} and momentum "
                f"{self.momentum}. Plain averaging is OuterStep(rate=1.0, momentum=0.0)."
            )

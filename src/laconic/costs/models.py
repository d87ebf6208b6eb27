"""What a message costs, by its size: in bits, in bytes of whole packets, or in seconds of a link.

Khirirat, Magnússon, Aytekin, Johansson, "A Flexible Framework for Communication-Efficient Machine Learning",
AAAI 2021, weigh the descent that a message buys against C = c1 * P + c0 or c1 * ceil(P / P_max) + c0, where P is
its size. Here every constant is named with its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from laconic.arguments import check_number


@runtime_checkable
class Cost(Protocol):
    """What one message of so many bits costs."""

    name: ClassVar[str]
    unit: ClassVar[str]

    @property
    def step_bits(self) -> float | None:
        """The size in bits of the step at which the cost jumps; None where it is smooth."""

    def of(self, bits: Tensor) -> Tensor:
        """Return the cost of a message of each of these sizes, in ``unit``, as float64."""


@dataclass(frozen=True, kw_only=True)
class Bits:
    """The bits themselves.

    >>> Bits().of(torch.tensor([35, 70])).tolist()
    [35.0, 70.0]
    """

    name: ClassVar[str] = "bits"
    unit: ClassVar[str] = "bits"

    @property
    def step_bits(self) -> float | None:
        """Return None: the cost is smooth."""
        return None

    def of(self, bits: Tensor) -> Tensor:
        """Return the bits."""
        return bits.double()


@dataclass(frozen=True, kw_only=True)
class Affine:
    """So much for any message, and so much for each of its bits: fixed_bits + per_bit * bits.

    >>> Affine(fixed_bits=100).of(torch.tensor([35, 70])).tolist()
    [135.0, 170.0]
    """

    name: ClassVar[str] = "affine"
    unit: ClassVar[str] = "bits"
    fixed_bits: float
    per_bit: float = 1.0

    def __post_init__(self) -> None:
        check_number("fixed_bits", self.fixed_bits, 0.0, "For no overhead write 0, or Bits().")
        check_number("per_bit", self.per_bit, 0.0, "For the bits as they are write 1.")
        if not self.fixed_bits and not self.per_bit:
            raise ValueError(
                "a message must cost something, got fixed_bits 0 and per_bit 0. For the bits alone write Bits()."
            )

    @property
    def step_bits(self) -> float | None:
        """Return None: the cost is smooth."""
        return None

    def of(self, bits: Tensor) -> Tensor:
        """Return what all messages cost plus what the bits cost."""
        return self.fixed_bits + self.per_bit * bits.double()


@dataclass(frozen=True, kw_only=True)
class Packets:
    """Whole packets: per_packet * ceil(bits / 8 / payload_bytes) + fixed.

    ``per_packet`` is what a packet takes of the link, headers and all, however full it is; ``fixed`` is paid once a
    message. A payload may be a fraction of a byte: models are often stated in bits.

    >>> Packets(payload_bytes=16, per_packet=24, fixed=8).of(torch.tensor([105, 140])).tolist()
    [32.0, 56.0]
    """

    name: ClassVar[str] = "packets"
    unit: ClassVar[str] = "bytes"
    payload_bytes: float
    per_packet: float
    fixed: float = 0.0

    def __post_init__(self) -> None:
        _check_over_zero("payload_bytes", self.payload_bytes, "TCP over Ethernet carries 1460.")
        check_number("per_packet", self.per_packet, 0.0, "A full packet of TCP over Ethernet takes 1518.")
        check_number("fixed", self.fixed, 0.0, "For no overhead of a message write 0.")
        if not self.per_packet and not self.fixed:
            raise ValueError(
                "a message must cost something, got per_packet 0 and fixed 0. To count packets write per_packet=1."
            )

    @staticmethod
    def ethernet_tcp() -> Packets:
        """Return TCP over Ethernet: 1460 bytes of payload in frames of 1518 bytes.

        The overhead is the protocols' own arithmetic, not a figure of the paper's: 14 bytes of Ethernet header and
        4 of its checksum, 20 of IP and 20 of TCP without options, 58 in all.
        """
        return Packets(payload_bytes=1460, per_packet=1460 + 14 + 4 + 20 + 20)

    @staticmethod
    def ethernet_udp() -> Packets:
        """Return UDP over Ethernet: 1472 bytes of payload, 54 of headers.

        Both are as recalled with little certainty from the paper. 54 is what the protocols add up to with the
        preamble: 8 bytes of it, 14 of Ethernet header and 4 of its checksum, 20 of IP, 8 of UDP.
        """
        return Packets(payload_bytes=1472, per_packet=1472 + 54)

    @staticmethod
    def ieee_802_15_4(*, overhead_bytes: float = 23) -> Packets:
        """Return IEEE 802.15.4: packets of 133 bytes, of which 23 to 82 are overhead.

        The figures are as recalled with little certainty from the paper. The overhead depends on addresses and
        security; by default it is the least.
        """
        check_number("overhead_bytes", overhead_bytes, 0.0, "It is 23 to 82, by addresses and security.")
        if overhead_bytes >= 133:
            raise ValueError(
                f"overhead_bytes must be less than the packet's 133, got {overhead_bytes!r}. It is 23 to 82."
            )
        return Packets(payload_bytes=133 - overhead_bytes, per_packet=133)

    @staticmethod
    def cat_paper() -> Packets:
        """Return the constants c1 = 576, c0 = 64, P_max = 512, in bytes.

        They are second-hand: others quote them from the paper. That they are bytes, 512 of payload and 64 of
        header in a packet, is our reading.
        """
        return Packets(payload_bytes=512, per_packet=576, fixed=64)

    @property
    def step_bits(self) -> float | None:
        """Return a packet's payload in bits."""
        return 8.0 * self.payload_bytes

    def of(self, bits: Tensor) -> Tensor:
        """Return the bytes that the packets of a message take of the link, and what is paid once."""
        return self.per_packet * torch.ceil(bits.double() / (8.0 * self.payload_bytes)) + self.fixed


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """The time that a link takes: latency_seconds + bits / bits_per_second.

    With both numbers the link is fixed. With neither it is to be measured while training; what measures it then
    asks ``at`` for the fixed one.

    >>> Seconds(latency_seconds=0.5, bits_per_second=1e6).of(torch.tensor([250_000])).tolist()
    [0.75]
    """

    name: ClassVar[str] = "seconds"
    unit: ClassVar[str] = "seconds"
    latency_seconds: float | None = None
    bits_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.measured:
            return
        if self.latency_seconds is None or self.bits_per_second is None:
            raise ValueError(
                f"a link has a latency and a rate, got latency_seconds {self.latency_seconds!r} and "
                f"bits_per_second {self.bits_per_second!r}. Give both, or neither to have the link measured."
            )
        check_number("latency_seconds", self.latency_seconds, 0.0, "For 0.1 ms write 1e-4.")
        _check_over_zero("bits_per_second", self.bits_per_second, "For 1 Gbit/s write 1e9.")

    @property
    def measured(self) -> bool:
        """Whether the link is to be measured while training."""
        return self.latency_seconds is None and self.bits_per_second is None

    def at(self, latency_seconds: float, bits_per_second: float) -> Seconds:
        """Return the cost on a link of these numbers."""
        return Seconds(latency_seconds=latency_seconds, bits_per_second=bits_per_second)

    @property
    def step_bits(self) -> float | None:
        """Return None: the cost is smooth."""
        return None

    def of(self, bits: Tensor) -> Tensor:
        """Return the seconds; a link that is still to be measured is a ValueError."""
        if self.latency_seconds is None or self.bits_per_second is None:
            raise ValueError(
                "Seconds() has no latency and no rate yet: the tuner measures them while training. For a link that "
                "is known write Seconds(latency_seconds=1e-4, bits_per_second=1e9)."
            )
        return self.latency_seconds + bits.double() / self.bits_per_second


def _check_over_zero(name: str, value: object, hint: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
        raise ValueError(f"{name} must be a finite number over 0, got {value!r}. {hint}")

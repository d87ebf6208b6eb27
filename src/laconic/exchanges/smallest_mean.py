"""Of gathering and sharding, bucket by bucket, the one by which a rank receives fewer bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from laconic.codecs import Exact
from laconic.coding import Codec
from laconic.exchanges.gather_mean import GatherMean
from laconic.exchanges.lettering import check_codec
from laconic.exchanges.reducing import refuse_some_senders
from laconic.exchanges.sharded_mean import ShardedMean
from laconic.segments import Segments
from laconic.types import Compressor, Envelope, Plan, Steps


@dataclass(frozen=True, kw_only=True)
class SmallestMean:
    """``GatherMean`` for two ranks and small buckets, ``ShardedMean`` for more: what is smaller by the plan.

    The plan is the same on every rank, and so is the choice. Both write ``values`` alike.
    """

    name: ClassVar[str] = "smallest_mean"
    tells: ClassVar[bool] = True
    values: Codec = field(default_factory=Exact)

    def __post_init__(self) -> None:
        check_codec(self.values)

    def check(self, compressor: Compressor) -> None:
        """Refuse what either refuses."""
        for exchange in self._both:
            try:
                exchange.check(compressor)
            except ValueError as error:
                raise ValueError(f"smallest_mean may be {exchange.name}: {error}") from error

    def of(self, plan: Plan, x: Tensor, envelope: Envelope) -> GatherMean | ShardedMean:
        """Return the one by which a rank receives fewer bytes; where they are equal, the one of fewer rounds."""
        gathered, sharded = self._both
        smaller = sharded.received_bytes(plan, x, envelope) < gathered.received_bytes(plan, x, envelope)
        return sharded if smaller else gathered

    def steps(self, x: Tensor, segments: Segments, compressor: Compressor, envelope: Envelope) -> Steps:
        """Leave in x what the smaller one leaves."""
        refuse_some_senders(self.name, envelope)
        plan = compressor.plan(segments, step=envelope.step, rooms=envelope.rooms)
        return (yield from self.of(plan, x, envelope).steps(x, segments, compressor, envelope))

    @property
    def lossless(self) -> bool:
        """Whether both are: they write values alike."""
        return all(exchange.lossless for exchange in self._both)

    @property
    def _both(self) -> tuple[GatherMean, ShardedMean]:
        return GatherMean(values=self.values), ShardedMean(values=self.values)

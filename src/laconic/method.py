"""What a method is: one answer to each of the four questions, as data that can be read and changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from laconic.arguments import check_choice, check_share
from laconic.clipping import LocalClip
from laconic.compressors import Dense, StdThreshold
from laconic.exchanges import InParts, LedMean, LowRankMean, ShardedMean, SmallestMean, TwoLevel
from laconic.exchanges.two_level import between_nodes
from laconic.guard import Guard
from laconic.local import LocalSteps
from laconic.tuners import Budget, Cat, Relief
from laconic.types import Compressor, Exchange, Tuner

Unit = Literal["none", "gradient", "update"]
Scope = Literal["layer", "model"]
Owner = Literal["optimizer", "method"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """What is sent, how much, and how; ``dataclasses.replace`` makes variants.

    ``memory`` is the unit of what is owed: ``gradient`` keeps g, ``update`` keeps learning rate times g (so a
    later change of the rate does not rescale what is owed), ``none`` forgets what was not sent. ``scope``
    says over what the compressor selects: each ``layer``, bucket by bucket while backward goes on, or the
    whole ``model`` as one vector, which must wait for the last bucket.

    ``clip`` clips each rank's gradient before it is accumulated. ``momentum="method"`` moves momentum out of
    the optimizer: velocity is built from local gradients and is what is accumulated (momentum
    compensation); with ``masking`` the velocity of entries that were sent starts anew. ``damping`` divides what
    waited by the root of its mean delay. ``guard`` watches what is owed. With ``decay`` below 1, what is owed fades
    by this factor each exchange (SparseLoCo's beta).

    With ``local`` ranks take rounds of local steps, and all of the above is about what they exchange then: not
    gradients but drifts, how far each has walked. ``clip`` then clips the drift; gradients are clipped by
    ``local``.
    """

    name: str
    compressor: Compressor
    exchange: Exchange
    tuner: Tuner
    memory: Unit
    scope: Scope
    clip: LocalClip | None = None
    momentum: Owner = "optimizer"
    masking: bool = False
    damping: bool = False
    guard: Guard | None = None
    decay: float = 1.0
    local: LocalSteps | None = None

    def __post_init__(self) -> None:
        _check_part("compressor", self.compressor, Compressor, "TopK(density=0.01)")
        _check_part("exchange", self.exchange, Exchange, "GatherMean()")
        _check_part("tuner", self.tuner, Tuner, "Constant()")
        check_choice("memory", self.memory, get_args(Unit))
        check_choice("scope", self.scope, get_args(Scope))
        check_choice("momentum", self.momentum, get_args(Owner))
        check_share("decay", self.decay, "Write 1.0 for what is owed to wait undiminished.")
        if self.clip is not None:
            _check_part("clip", self.clip, LocalClip, "LocalClip(norm=0.25)")
        if self.guard is not None:
            _check_part("guard", self.guard, Guard, "Guard()")
        self._check_companions()
        self._check_threshold()
        self._check_low_rank()
        self._check_sharded()
        if self.local is not None:
            _check_part("local", self.local, LocalSteps, "LocalSteps(period=Every(steps=16))")
            self._check_local(self.local)
        self.exchange.check(self.compressor)
        self.tuner.init(self.compressor)

    @property
    def needs_loss(self) -> bool:
        """Whether ``link.observe`` must be told the loss before every step."""
        return self.tuner.needs_loss or (self.local is not None and self.local.period.needs_loss)

    @property
    def clips_gradients(self) -> bool:
        """Whether the method clips gradients itself, so that the training loop need not."""
        return self.clip is not None if self.local is None else self.local.clip is not None

    @property
    def _calm_tuner(self) -> Tuner:
        """What says how much while no guard is alarmed."""
        return self.tuner.inner if isinstance(self.tuner, Relief) else self.tuner

    def _check_local(self, local: LocalSteps) -> None:
        if self.momentum == "method":
            raise ValueError(
                "momentum='method' is for gradients of every step; drifts have an outer step of their own."
            )
        if local.restart != 0 and self.memory == "none":
            raise ValueError(f"restart={local.restart} is a share of what is owed, and memory='none' owes nothing.")
        if local.participants is not None and not self.exchange.tells:
            raise ValueError(
                "where only some ranks send, the others cannot add up: use GatherMean() with participants."
            )
        if isinstance(self.exchange, TwoLevel):
            raise ValueError(
                f"{self.name} takes local steps, in which every rank walks by itself, and two_level makes one "
                f"worker of a node's ranks. Use GatherMean() with local steps, or exchange in every step."
            )
        if (local.fragments > 1 or local.delay) and self.scope == "model":
            raise ValueError("fragments are exchanged by themselves: give the method scope='layer'.")

    def _check_companions(self) -> None:
        # With values that are rounded on the way even a dense gradient leaves something owed.
        dense = isinstance(self.compressor, Dense) and self.exchange.lossless
        if dense and self.memory != "none":
            raise ValueError(
                f"Dense sends everything, nothing is ever owed: set memory='none', got '{self.memory}'."
            )
        if dense and self.clip is not None:
            raise ValueError("Dense is plain DDP to the bit: clip in the training loop and leave clip=None.")
        if self.memory == "none" and (self.momentum == "method" or self.damping):
            raise ValueError("momentum='method' and damping need memory: set memory='gradient' or 'update'.")
        if self.memory == "none" and self.decay != 1:
            raise ValueError(
                f"decay={self.decay!r} fades what is owed, and memory='none' owes nothing: set memory='gradient' "
                f"or 'update', or leave decay=1.0."
            )
        if self.masking and self.momentum != "method":
            raise ValueError("masking is of the method's own velocity: set momentum='method', or masking=False.")
        tells = self.exchange.tells
        if not tells and (self.guard is not None or self.tuner.needs_loss or self.tuner.spectrum_of != "none"):
            raise ValueError(
                f"{self.exchange.name} carries no alarm, no loss and no spectrum: leave guard=None, or use "
                f"GatherMean()."
            )
        weighs = self._calm_tuner
        if isinstance(weighs, Cat | Budget) and (not tells or not self.compressor.ranks_choose):
            raise ValueError(
                f"{weighs.name} moves how much each rank chooses, and is told by messages: use it with "
                f"GatherMean() and a compressor such as TopK, not with {self.exchange.name} and "
                f"{self.compressor.name}."
            )
        if isinstance(self.tuner, Relief) and self.guard is None:
            raise ValueError("Relief answers a guard's alarm: set guard=Guard().")
        if self.damping and not self.compressor.ranks_choose:
            raise ValueError(f"damping needs entries that waited; with {self.compressor.name} none is chosen.")

    def _check_threshold(self) -> None:
        rule = self.compressor
        if isinstance(rule, StdThreshold) and rule.over == "model" and self.scope == "layer" and not rule.running:
            raise ValueError(
                "one threshold over all layers needs all of them: give the method scope='model' to wait for the "
                "last bucket, or with std_of='gradient' the threshold running=0.9 to go bucket by bucket."
            )

    def _check_low_rank(self) -> None:
        exchange = between_nodes(self.exchange)
        if isinstance(exchange, LowRankMean) and self.scope != "layer":
            raise ValueError("lowrank_mean sends matrices, and one vector of them all is none: scope='layer'.")
        if isinstance(exchange, LowRankMean) and self.masking:
            raise ValueError("masking is of single entries, of which lowrank_mean sends none: set masking=False.")

    def _check_in_parts(self, exchange: InParts) -> None:
        if self.scope != "model":
            raise ValueError(
                "in_parts sends one part of the entries in each step, and small parameters would wait for their "
                "turn with all they have: give the method scope='model', where the largest of all are chosen."
            )
        if self.memory == "none":
            raise ValueError(
                "in_parts sends from one part in each step, and what the others have would be lost: set "
                "memory='gradient' or 'update'."
            )
        tuner = self._calm_tuner
        if tuner.spectrum_of != "none" or isinstance(tuner, Budget):
            raise ValueError(
                f"{tuner.name} reckons with all that a rank owes, and in_parts sends from a part of it: use "
                f"{exchange.inner.name} without parts."
            )
        if self.damping:
            raise ValueError(
                "damping divides by how long an entry waited to be chosen, and in_parts has it wait for its turn: "
                "set damping=False, or leave the parts out."
            )

    def _check_sharded(self) -> None:
        exchange = between_nodes(self.exchange)
        if isinstance(exchange, InParts):
            self._check_in_parts(exchange)
            exchange = exchange.inner
        if not isinstance(exchange, LedMean | ShardedMean | SmallestMean):
            return
        if isinstance(exchange, LedMean) and self.tuner.spectrum_of != "none":
            raise ValueError(
                f"{self.tuner.name} weighs what each rank chooses, and with led_mean one rank chooses for all: use "
                f"GatherMean()."
            )
        if self.tuner.spectrum_of == "change":
            raise ValueError(
                f"{self.tuner.name} looks along what each rank sent, and {exchange.name} tells sums alone: use "
                f"GatherMean(), or a gain that looks at magnitudes only."
            )
        if isinstance(tuner := self._calm_tuner, Budget) and tuner.bits_per_second is not None:
            raise ValueError(
                f"budget knows what a gathered message puts on the link, not what {exchange.name} does: use "
                f"GatherMean() with it."
            )
        if self.damping:
            raise ValueError(
                f"damping cuts what is sent, of which {exchange.name} gives part back: set damping=False, or use "
                f"GatherMean()."
            )
        if self.local is not None and self.local.participants is not None:
            raise ValueError(f"with {exchange.name} every rank sends: use GatherMean() with participants.")


def _check_part(name: str, value: object, protocol: type, example: str) -> None:
    # A class has the protocol's attributes too: TopK instead of TopK(...) is an easy slip.
    if isinstance(value, type) or not isinstance(value, protocol):
        raise TypeError(f"{name} must be of the kind {protocol.__name__}, such as {example}, got {value!r}.")

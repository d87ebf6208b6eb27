"""Everything that a reducer remembers from step to step, and how it is saved and taken over."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from laconic.arguments import check_whole
from laconic.compressors import Dense, SampledTopK, StdThreshold, TopK
from laconic.damping import Damped
from laconic.exchanges import InParts, ShardedMean, SmallestMean
from laconic.exchanges.two_level import between_nodes
from laconic.gauge import Gauge
from laconic.guard import Alarm
from laconic.job import Job
from laconic.ledger import Ledger
from laconic.memory import Memory
from laconic.method import Method
from laconic.nodes import node_size_of
from laconic.pace import UNKNOWN_PACE, Pace
from laconic.segments import Segments
from laconic.shards import CUTS
from laconic.spectrum import Spectrum
from laconic.stats import Counters
from laconic.theory import Probe, Watched
from laconic.tuners import Constant
from laconic.types import Compressor, Envelope, Fresh, Observation, Steps, TunerState

STATE_VERSION = 5
_KEYS = {"method", "step", "tuner", "setting", "seen", "ledger", "alarm", "gauge", "counters", "theory"}
_KEYS |= {"memory", "kept", "node_size"}


@dataclass
class State:
    """What is owed, the setting, the step, what was seen, and what was counted."""

    method: Method
    model: Segments
    memory: Memory
    ledger: Ledger
    alarm: Alarm
    gauge: Gauge
    probe: Probe | None
    setting: Compressor
    tuner: TunerState
    step: int = 0
    counters: Counters = field(default_factory=Counters)
    kept: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def begin(
        method: Method,
        model: Segments,
        *,
        dtype: torch.dtype,
        device: torch.device,
        rank: int,
        velocity: bool,
        track_age: bool,
        measure_every: int,
    ) -> State:
        """Return the state before the first step."""
        check_whole("measure_every", measure_every, 0, "Write 0 for never, 100 for every hundredth step.")
        if measure_every and (method.memory == "none" or method.compressor.counts_vary or method.decay != 1):
            raise ValueError(
                f"measure_every looks at the theory of TopK-SGD, and {method.name} keeps no memory, lets it "
                f"fade or has no fixed share: nothing to measure. Leave it at 0."
            )
        if measure_every and isinstance(between_nodes(method.exchange), InParts):
            raise ValueError(
                "measure_every looks at the largest entries of all, and in_parts sends those of a part. Leave it "
                "at 0, or the parts out."
            )
        if track_age and method.memory == "none":
            raise ValueError(f"track_age: {method.name} keeps no memory, so nothing waits. Leave it out.")
        kinds = {} if method.memory == "none" else {"owed": dtype}
        if velocity:
            kinds["velocity"] = dtype
        if track_age or method.damping:
            kinds["sent_at"] = torch.int32
        rule = method.compressor
        weight = rule.running if isinstance(rule, StdThreshold) else 0.0
        drift = Memory(model, kinds={"drift": dtype}, device=device) if measure_every else None
        memory = Memory(model, kinds=kinds, device=device)
        return State(
            method=method,
            model=model,
            memory=memory,
            ledger=Ledger(model, weight=weight, dtype=dtype, device=device),
            alarm=Alarm(method.guard, rank=rank),
            gauge=Gauge(method.tuner.spectrum_of, memory, model),
            probe=Probe(every=measure_every, drift=drift) if drift else None,
            setting=rule,
            tuner=method.tuner.init(rule),
        )

    @property
    def step_shapes_messages(self) -> bool:
        """Whether the size or number of messages depends on the step: by tuner, counts, ranges, parts or probe."""
        tuned = not isinstance(self.method.tuner, Constant)
        cut = isinstance(between_nodes(self.method.exchange), ShardedMean | SmallestMean | InParts)
        return self.probe is not None or tuned or cut or self.method.compressor.counts_vary

    def compressor(self, job: Job) -> Compressor:
        """Return what chooses from a job's vector in this step."""
        if not self.method.damping:
            return self.setting
        return Damped(self.setting, self.step + 1 - self.memory.read("sent_at", job.segments))

    def fresh(self, job: Job, *, merged: bool) -> Fresh | None:
        """Return what a compressor may know of the gradients that entered a job; None where none was looked at."""
        if job.entered is None:
            return None
        reads = self.setting.reads_before and self.method.memory != "none"
        before = self.memory.read("owed", job.segments) if reads else None
        return self.ledger.fresh(job.entered, before, merged=merged, past=_reads_past(self.setting))

    def measured(
        self, job: Job, segments: Segments, compressor: Compressor, envelope: Envelope, steps: Steps
    ) -> Steps:
        """Run an exchange, with measurements around it if they were asked for."""
        if self.probe is None:
            return (yield from steps)
        owed = self.memory.read("owed", job.segments)
        watched = Watched(x=job.x, owed=owed, held=job.held_back(), home=job.segments)
        return (yield from self.probe.watch(watched, segments, compressor, envelope, steps))

    def agreement(self) -> str:
        """Name what shapes the next messages: equal on all ranks that are where this one is."""
        # To nine digits: hosts may round unlike in the last.
        tuner = {key: f"{value:.9g}" for key, value in self.tuner.items()}
        cuts = sorted((name, kept.tolist()) for name, kept in self.kept.items() if name.startswith(CUTS))
        shaping = zlib.crc32(repr((sorted(self.ledger.rooms.items()), tuner, cuts)).encode())
        return f"{self.method.name} at step {self.step} in state {shaping:08x}"

    def state_dict(self) -> dict[str, Any]:
        """Return it all as plain containers of numbers and tensors, copied."""
        return {
            "version": STATE_VERSION,
            "method": repr(self.method),
            "memory_unit": self.method.memory,
            "node_size": node_size_of(self.method),
            "step": self.step,
            "tuner": dict(self.tuner),
            "setting": asdict(cast("Dense", self.setting)),
            # How long a step took says nothing of the one after a restart.
            "seen": asdict(replace(self.ledger.seen, pace=UNKNOWN_PACE)),
            "ledger": self.ledger.state_dict(),
            "alarm": self.alarm.state_dict(),
            "gauge": self.gauge.state_dict(),
            "counters": asdict(self.counters),
            "theory": {"xi": self.probe.largest_xi, "fresh": self.probe.largest_fresh} if self.probe else {},
            "memory": self.memory.state_dict(),
            "kept": {name: value.clone() for name, value in self.kept.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; it fits, or nothing is changed.

        The method may differ from the saved one in its settings (the new ones hold), not in the unit of
        what is owed.
        """
        self._check(state)
        try:
            seen, counters = observation(state["seen"]), Counters(**state["counters"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the state was saved by another laconic: {error}.") from error
        self.memory.check(state["memory"], optional=("sent_at",))
        self.ledger.check(state["ledger"])
        self.alarm.check(state["alarm"])
        # Ages are for looking at: a state saved without them counts them from here on.
        self.memory.load_state_dict(state["memory"], start={"sent_at": state["step"]})
        self.ledger.load_state_dict(state["ledger"])
        self.alarm.load_state_dict(state["alarm"])
        self.gauge.load_state_dict(state["gauge"] if state["method"] == repr(self.method) else {})
        self.step, self.ledger.seen, self.counters = state["step"], seen, counters
        self.kept = {}
        if state["method"] == repr(self.method):
            self.tuner = dict(state["tuner"])
            self.setting = _restored(self.method.compressor, state["setting"])
            device = self.memory.device
            self.kept = {name: value.to(device, copy=True) for name, value in state["kept"].items()}
        if self.probe is not None:
            # The identity v - x = mean memory says where the drift stands.
            self.probe.drift.write("drift", self.model, self.memory["owed"])
            self.probe.largest_xi = state["theory"].get("xi", 0.0)
            self.probe.largest_fresh = state["theory"].get("fresh", 0.0)

    def _check(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict wants what state_dict returned, got {type(state).__name__}.")
        version, unit = state.get("version"), state.get("memory_unit")
        if version != STATE_VERSION:
            raise ValueError(
                f"the state has version {version}, this laconic reads {STATE_VERSION}. Finish the run with the "
                f"laconic that saved it, or start memory anew: attach without loading."
            )
        if unit != self.method.memory:
            raise ValueError(
                f"the state's memory is in '{unit}' units, this method keeps '{self.method.memory}'. "
                f"Attach a method with memory='{unit}' to load it."
            )
        missing = sorted(_KEYS - set(state))
        saved, size = state.get("node_size", 1), node_size_of(self.method)
        # What ranks of a node hold must be the same; from copies of a node's memory each may go on by itself.
        if size > 1 and saved != size:
            raise ValueError(
                f"the state was saved with nodes of {saved} ranks, this method has nodes of {size}, whose ranks "
                f"would hold unlike memory. Load it with TwoLevel(node_size={saved}), or start memory anew."
            )
        if missing:
            raise ValueError(f"the state lacks {', '.join(missing)}: it was not saved by link.state_dict().")


def observation(saved: Mapping[str, Any]) -> Observation:
    """Return what was seen, as it was saved."""
    spectrum = saved["spectrum"] and Spectrum(**saved["spectrum"])
    return Observation(**{**saved, "spectrum": spectrum, "pace": Pace(**saved["pace"])})


def _reads_past(compressor: Compressor) -> bool:
    """Whether it may look at what the steps before have shown; the largest entries are what they are."""
    if isinstance(compressor, StdThreshold):
        return bool(compressor.running)
    return not isinstance(compressor, TopK | SampledTopK | Dense)


def _restored(part: Any, saved: Mapping[str, Any]) -> Any:
    """Return frozen data with saved settings; a part within a part is restored by itself."""
    settings = {k: _restored(getattr(part, k), v) if isinstance(v, Mapping) else v for k, v in saved.items()}
    return replace(part, **settings)

"""A rank's forward and backward as one CUDA graph, behind the seam of ordinary work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from laconic.lab.work import Work
from laconic.sim.batched import filled, parts_in, tensors_in

# Steps with a kind of batch before it is captured: libraries choose and allocate in the first ones.
_EAGER_STEPS = 3
# Each graph has its activations and gradients for itself.
_MOST_GRAPHS = 4
# Kinds of batches that are counted: where every step has another one, none is worth a graph.
_MOST_KINDS = 64
_log = logging.getLogger("laconic")
# torch allows one capture at a time in a process.
_capturing = threading.Lock()
# Allocators may go on asking a graph whose capture broke off: such a one lives as long as the process.
_broken: list[torch.cuda.CUDAGraph] = []


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A loss, and the gradient of each parameter that wants one; None: the loss does not depend on it."""

    loss: Tensor
    grads: Sequence[Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a replay computes anew: always in the same tensors, from the same tensors."""

    replay: Callable[[], None]
    computed: Computed


class Recorder(Protocol):
    """Who makes recordings of computations."""

    def warm(self, compute: Callable[[], Computed]) -> Computed:
        """Compute for real where recordings are made, so that what is allocated once is there."""
        ...

    def record(self, compute: Callable[[], Computed]) -> Recording:
        """Return a recording; nothing is computed before it is replayed. An error leaves all as it was."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A recorded step, the tensors that it reads its batch from, and those in which work remembers something."""

    inputs: Sequence[Tensor]
    state: dict[str, Any]
    recording: Recording


class Captured:
    """Work whose steps are replayed from the fourth one with batches of a kind on.

    Of a kind are batches with the same shapes and the same values that are no tensors. For a module that is not
    wrapped: the gradients are in their places when ``loss`` returns, and backward on what it returns adds nothing
    to them, nor would scaling it. Where gradients are there already, work is done as ever, and adds to them.

    Times are not simulated with it: a clock that hears by hooks when gradients come hears of none in a replay, and
    takes a step's work for done when the next one begins.
    """

    def __init__(self, work: Work, recorder: Recorder, device: torch.device) -> None:
        self._work, self._recorder, self._device = work, recorder, device
        self.model, self.metric, self.splits = work.model, work.metric, work.splits
        self.steps_per_epoch = work.steps_per_epoch
        self.batch, self.evaluate, self.load_state_dict = work.batch, work.evaluate, work.load_state_dict
        self._parameters = [p for p in work.model.parameters() if p.requires_grad]
        self._read = [*work.model.parameters(), *work.model.buffers()]
        self._pointers: list[int] = []
        self._seen: dict[Hashable, int] = {}
        self._steps: dict[Hashable, _Step] = {}
        self._states: dict[Hashable, dict[str, Any]] = {}
        self._captures, self._stopped, self._held = 0, False, False

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch, and leave the parameters' gradients in their places."""
        if (
            model is not self.model
            or not torch.is_grad_enabled()
            or any(p.grad is not None for p in self._parameters)
        ):
            self._held = True
            return self._work.loss(model, batch)
        computed = self._step(batch)
        self._held = False
        for parameter, grad in zip(self._parameters, computed.grads, strict=True):
            parameter.grad = grad
        # A copy: the next replay writes over what this one has left.
        return computed.loss.clone().requires_grad_()

    def state_dict(self) -> dict[str, Any]:
        """Return what steps have left behind: copies, since replays write over it."""
        state = self._work.state_dict()
        copied: dict[str, Any] = filled(state, [tensor.clone() for tensor in tensors_in(state)])
        return copied

    def _step(self, batch: Any) -> Computed:
        kind = self._kind(batch)
        if self._steps and self._pointers != self._places():
            # Graphs read where parameters were when they were captured.
            self._steps, self._seen = {}, {}
        if kind is not None and kind in self._steps:
            return self._replayed(self._steps[kind], batch)
        if kind is None or not self._worth_counting(kind):
            return self._computed(batch)
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen < _EAGER_STEPS:
            return self._computed(batch)
        if seen == _EAGER_STEPS:
            return self._warmed(kind, batch)
        step = self._captured(batch)
        if step is None:
            return self._computed(batch)
        self._steps[kind] = step
        return self._replayed(step, batch)

    def _kind(self, batch: Any) -> Hashable:
        """Return what a graph is captured for; None if it cannot be."""
        state = self._work.state_dict()
        # What is not on the device would be read once, when it is captured.
        if any(tensor.device.type != self._device.type for tensor in tensors_in((batch, state))):
            return None
        kind = (_described(batch), _described(state), self.model.training)
        try:
            hash(kind)
        except TypeError:
            return None
        return kind

    def _worth_counting(self, kind: Hashable) -> bool:
        # A caller that holds a graph of autograd's keeps the nodes alive by which gradients arrive. They belong to
        # the stream on which they were made, which a capture on another one must not touch.
        if self._held or self._stopped or self._captures >= _MOST_GRAPHS:
            return False
        return kind in self._seen or len(self._seen) < _MOST_KINDS

    def _places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._read]

    def _computed(self, batch: Any) -> Computed:
        """Compute without leaving a graph of autograd's behind."""
        loss = self._work.loss(self.model, batch)
        grads = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return Computed(loss=loss.detach(), grads=_laid_out(self._parameters, grads))

    def _warmed(self, kind: Hashable, batch: Any) -> Computed:
        before = _described(self._work.state_dict())
        computed = self._recorder.warm(partial(self._computed, batch))
        if _described(self._work.state_dict()) != before:
            # There is no one place to leave it in: begin again, and perhaps never come to an end.
            self._seen[kind] = 0
        return computed

    def _captured(self, batch: Any) -> _Step | None:
        """Capture a step, which is not done by that; None, and no more captures, if it fails."""
        state = self._work.state_dict()
        inputs = [tensor.clone() for tensor in tensors_in(batch)]
        # One for all kinds of batches, so that work need not carry it from graph to graph.
        kept = self._states.setdefault(
            _described(state), filled(state, [tensor.clone() for tensor in tensors_in(state)])
        )
        try:
            recording = self._recorder.record(partial(self._computed_within, filled(batch, inputs), kept))
        # Whatever it is that cannot be captured: the message is told.
        except Exception as error:
            self._stopped = True
            _log.warning("Steps are computed kernel by kernel, they cannot be captured: %s", _first_cause(error))
            return None
        finally:
            self._work.load_state_dict(state)
        self._captures, self._pointers = self._captures + 1, self._places()
        return _Step(inputs=inputs, state=kept, recording=recording)

    def _computed_within(self, batch: Any, state: dict[str, Any]) -> Computed:
        """Compute with what is remembered read from, and left in, the tensors of ``state``."""
        self._work.load_state_dict(state)
        computed = self._computed(batch)
        kept, left = tensors_in(state), tensors_in(self._work.state_dict())
        places = {tensor.untyped_storage().data_ptr() for tensor in kept}
        # Some may be what it was before, or a part of it.
        left = [tensor.clone() if tensor.untyped_storage().data_ptr() in places else tensor for tensor in left]
        # After backward, which reads what was there before.
        _copy(left, kept)
        return computed

    def _replayed(self, step: _Step, batch: Any) -> Computed:
        _copy(tensors_in(batch), step.inputs)
        # Unlike after a replay, if a step was computed otherwise in between or a checkpoint was loaded.
        _copy(tensors_in(self._work.state_dict()), tensors_in(step.state))
        # A replay draws by the seed and the offset that the device's default generator has now, and moves that on
        # (CUDAGraph::replay calls the generator's replay_prologue): what a loop seeds before a step holds.
        step.recording.replay()
        self._work.load_state_dict(step.state)
        return step.recording.computed


class CudaRecorder:
    """Captures CUDA graphs, each with a memory pool of its own, on a stream beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._side = device, torch.cuda.Stream(device)

    def warm(self, compute: Callable[[], Computed]) -> Computed:
        """Compute on the side stream."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            # What is freed of this is used again on the side stream only, and that waits first, here or in record.
            self._side.wait_stream(current)
            with torch.cuda.stream(self._side):
                computed = compute()
            current.wait_stream(self._side)
        return computed

    def record(self, compute: Callable[[], Computed]) -> Recording:
        """Capture; it waits for all that the device does."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        with _capturing, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            try:
                # Threads that make batches ready allocate meanwhile, which only this one must not.
                with torch.cuda.graph(graph, pool, self._side, capture_error_mode="thread_local"):
                    computed = compute()
            except BaseException:
                _broken.append(graph)
                # torch leaves the side stream the current one.
                torch.cuda.set_stream(current)
                self._repair(pool)
                torch.cuda.set_stream(current)
                raise
        return Recording(replay=graph.replay, computed=computed)

    def _repair(self, pool: Any) -> None:
        """Take back what torch leaves behind of a capture that broke off, as far as it lets one."""
        with suppress(Exception):
            # The allocator takes the capture for under way, and would refuse to empty its cache from now on.
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        with suppress(Exception):
            # Some versions' generator takes itself for captured until a capture comes to its end.
            whole = torch.cuda.CUDAGraph()
            with torch.cuda.graph(whole, stream=self._side, capture_error_mode="thread_local"):
                torch.zeros(1, device=self._device)


def captured(work: Work, device: torch.device) -> Work:
    """Return work whose steps are replayed where the device is a GPU; on CPU the work itself."""
    return Captured(work, CudaRecorder(device), device) if device.type == "cuda" else work


def _described(tree: Any) -> tuple[Any, ...]:
    return tuple((part.shape, part.dtype) if isinstance(part, Tensor) else part for part in parts_in(tree))


@torch.no_grad()
def _copy(given: Sequence[Tensor], to: Sequence[Tensor]) -> None:
    for theirs, mine in zip(given, to, strict=True):
        if mine is not theirs:
            mine.copy_(theirs)


def _laid_out(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients that lie as their parameters do and share no memory, as backward leaves them."""
    own, taken = list[Tensor | None](), set[int]()
    for parameter, grad in zip(parameters, grads, strict=True):
        mine = grad
        if grad is not None and grad.layout is torch.strided:
            if grad.stride() != parameter.stride() or grad.data_ptr() in taken:
                mine = torch.empty_like(parameter, requires_grad=False).copy_(grad)
            taken.add(grad.data_ptr())
        own.append(mine)
    return own


def _first_cause(error: BaseException) -> str:
    """Return the first line of what came first: a capture that ends in an error ends in one more."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error) or type(error).__name__).splitlines()[0]

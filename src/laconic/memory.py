"""What each parameter owes: vectors of the model's size, keyed by parameter name.

Names, never buckets: DDP lays its buckets out anew after the first step, and state keyed by bucket then
belongs to other parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from laconic.segments import Segments


class Memory:
    """One flat vector a kind (``owed``, ``velocity``), in the order of the model's own parameters.

    ``kinds`` are given with their dtypes.
    """

    def __init__(self, model: Segments, *, kinds: Mapping[str, torch.dtype], device: torch.device) -> None:
        self._model, self._device = model, device
        self._spares: dict[str, Tensor] = {}
        self._lent: dict[str, int] = {}
        self._vectors = {kind: torch.zeros(model.numel, dtype=d, device=device) for kind, d in kinds.items()}

    @property
    def device(self) -> torch.device:
        """Where the vectors lie."""
        return self._device

    def __getitem__(self, kind: str) -> Tensor:
        return self._vectors[kind]

    def get(self, kind: str) -> Tensor | None:
        """Return the kind's vector, or None if this memory keeps none."""
        return self._vectors.get(kind)

    def read(self, kind: str, segments: Segments, *, out: Tensor | None = None) -> Tensor:
        """Return a copy of the segments' part, laid out as they are; in ``out`` where that is given."""
        if out is None and self.is_all(segments):
            return self._vectors[kind].clone()
        return torch.cat([self._vectors[kind][:0], *(self._view(kind, name) for name in segments.names)], out=out)

    def look(self, kind: str, segments: Segments, *, out: Tensor) -> Tensor:
        """Return the segments' part, to be read: where it lies, or laid out in ``out`` as they are."""
        return self._vectors[kind] if self.is_all(segments) else self.read(kind, segments, out=out)

    def is_all(self, segments: Segments) -> bool:
        """Whether the segments are the whole model, laid out as it is."""
        return segments.numel == self._model.numel and lie_alike(self.home(segments), segments)

    def home(self, segments: Segments) -> Segments:
        """Return where the segments lie in each vector."""
        return self._model.among(segments.names)

    def write(self, kind: str, segments: Segments, x: Tensor) -> None:
        """Replace the segments' part by what x has there."""
        if self.is_all(segments) and x.numel() == segments.numel:
            self._vectors[kind].copy_(x)
        elif len(segments):
            torch._foreach_copy_([self._view(kind, name) for name in segments.names], segments.views(x))

    def spare(self, use: str, count: int, *, dtype: torch.dtype) -> Tensor:
        """Lend a piece of a vector that is kept for this use, so that no step makes one anew; it holds anything.

        Pieces lent since the last ``reclaim`` do not overlap: together they are the model at most.
        """
        if use not in self._spares:
            self._spares[use] = torch.empty(self._model.numel, dtype=dtype, device=self._device)
        begin = self._lent.get(use, 0)
        self._lent[use] = begin + count
        piece = self._spares[use][begin : begin + count]
        assert piece.numel() == count, f"{self._lent[use]} entries lent of {self._model.numel}"
        return piece

    def reclaim(self) -> None:
        """Take all pieces back."""
        self._lent.clear()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return copies of all vectors by kind and parameter name."""
        return {
            kind: {name: self._view(kind, name).clone() for name in self._model.names} for kind in self._vectors
        }

    def check(self, state: Mapping[str, Mapping[str, Tensor]], *, optional: Collection[str] = ()) -> None:
        """Raise if saved vectors do not fit; an ``optional`` kind may be missing, or be there without need."""
        _check_mapping("kinds of memory", state)
        needed = [kind for kind in self._vectors if kind not in optional or kind in state]
        _check_keys("kinds of memory", {k: v for k, v in state.items() if k not in optional or k in needed}, needed)
        for kind in needed:
            _check_keys(f"parameters in '{kind}'", state[kind], self._model.names)
            for segment in self._model:
                size = state[kind][segment.name].numel()
                if size != segment.size:
                    raise ValueError(
                        f"the saved '{kind}' of {segment.name} has {size} entries, the parameter has "
                        f"{segment.size}. Load the state of the same model."
                    )

    def load_state_dict(
        self, state: Mapping[str, Mapping[str, Tensor]], *, start: Mapping[str, int] | None = None
    ) -> None:
        """Take over saved vectors; all of them fit, or none is taken. A missing kind begins at its ``start``."""
        start = start or {}
        self.check(state, optional=start)
        for kind, vector in self._vectors.items():
            if kind not in state:
                vector.fill_(start[kind])
                continue
            for name in self._model.names:
                self._view(kind, name).copy_(state[kind][name].flatten())

    def _view(self, kind: str, name: str) -> Tensor:
        segment = self._model[name]
        return self._vectors[kind][segment.offset : segment.offset + segment.size]


def _check_mapping(what: str, got: object) -> None:
    if not isinstance(got, Mapping):
        raise TypeError(f"the saved state has no {what}: expected names and tensors, got {type(got).__name__}.")


def _check_keys(what: str, got: Mapping[str, object], wanted: Sequence[str] | Mapping[str, object]) -> None:
    _check_mapping(what, got)
    missing, foreign = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
    if missing or foreign:
        raise ValueError(
            f"the saved state does not fit, by {what}: missing {missing[:5]}, unknown {foreign[:5]}. "
            f"Load the state that the same method saved for the same model."
        )


@lru_cache(maxsize=1024)
def lie_alike(here: Segments, there: Segments) -> bool:
    """Whether parameters lie at the same places in two vectors, from the start on and one behind the other."""
    end = 0
    for a, b in zip(here, there, strict=True):
        if not a.offset == b.offset == end or a.size != b.size:
            return False
        end += a.size
    return True


def accumulation_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """Return the dtype that memory and wire values have for these parameters: float64 if any is, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32

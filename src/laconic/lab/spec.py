"""What a run is, as data: from it the run can be made again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from laconic.arguments import check_whole
from laconic.lab.method_words import make
from laconic.lab.tasks import TASKS, Task
from laconic.lab.training import Training

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One training: a task, how it is trained, by which method, on how many ranks."""

    task: Task
    training: Training
    method: str
    workers: int
    device: Device
    data_home: str
    checkpoint_every: int | None

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, "It counts ranks.")
        if self.checkpoint_every is not None:
            check_whole("checkpoint_every", self.checkpoint_every, 1, "It counts steps.")
        make(self.method)

    @property
    def settled(self) -> Training:
        """The training's settings with the task's own choice for those that were left open."""
        return self.training.filled(self.task.choice())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; ``from_dict`` makes the same spec of it."""
        task = {"kind": self.task.name} | asdict(self.task.settled())
        return asdict(self) | {"task": task, "training": asdict(self.settled)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Spec:
        """Read what ``as_dict`` wrote; what else lies in the data is left alone."""
        try:
            task = dict(data["task"])
            made = _build(TASKS[task.pop("kind")], task)
            training = _build(Training, data["training"])
            rest = {f.name: data[f.name] for f in fields(Spec) if f.name not in ("task", "training")}
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"this is not the spec of a run of this version: {error} is wrong or missing."
            ) from None
        return Spec(task=made, training=training, **rest)


def _build(kind: type[Any], values: dict[str, Any]) -> Any:
    known = {f.name: f for f in fields(kind)}
    # JSON has lists where the dataclass has tuples.
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name in known})

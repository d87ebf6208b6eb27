"""The tasks: each a frozen dataclass whose fields are its options, over the shared training code."""

from __future__ import annotations

from laconic.lab.tasks.lm import Lm
from laconic.lab.tasks.logreg import Logreg
from laconic.lab.tasks.speech import Speech
from laconic.lab.tasks.vision import Vision

Task = Lm | Vision | Speech | Logreg
TASKS: dict[str, type[Task]] = {task.name: task for task in (Lm, Vision, Speech, Logreg)}

__all__ = ["TASKS", "Lm", "Logreg", "Speech", "Task", "Vision"]

"""The live picture of a run: a bar on a terminal, a line now and then elsewhere, and TensorBoard if wanted."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from laconic.lab.report.amounts import number, rate
from laconic.lab.waits import slow_rank
from laconic.lab.work import Metric

# Where nobody watches a bar: seconds between lines.
_LINE_SECONDS = 10.0


class Show:
    """Follows runs, one after the other, on standard error: standard output is for results."""

    def __init__(self, *, hidden: bool, boards: bool) -> None:
        self._console, self._hidden, self._boards = Console(stderr=True), hidden, boards
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.completed}/{task.total}  {task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=hidden or not self._console.is_terminal,
        )

    def __enter__(self) -> Show:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, label: str, steps: int, metric: Metric, folder: Path, tensorboard: bool) -> Follower:
        """Follow a new run."""
        task = self._bar.add_task(label, total=steps, note="")
        board = board_in(folder / "tensorboard") if tensorboard and self._boards else None
        return Follower(self._bar, task, None if self._hidden else self._console, label, steps, metric, board)


class Follower:
    """Shows the lines of one run."""

    def __init__(
        self,
        bar: Progress,
        task: TaskID,
        console: Console | None,
        label: str,
        steps: int,
        metric: Metric,
        board: Any,
    ) -> None:
        self._bar, self._task, self._console, self._board = bar, task, console, board
        self._label, self._steps, self._metric = label, steps, metric
        self._score, self._printed = "", 0.0

    def line(self, line: dict[str, Any]) -> None:
        """Show a line of steps.jsonl."""
        if "metric" in line:
            self._score = f"  {self._metric.name} {line['metric']:.4g}"
        note = note_of(line, self._score)
        self._bar.update(self._task, completed=line["step"], note=note)
        last, now = line["step"] >= self._steps, time.monotonic()
        if self._console is not None and self._bar.disable and (last or now - self._printed >= _LINE_SECONDS):
            self._printed = now
            self._console.print(
                f"{self._label} {line['step']}/{self._steps}  {note}", highlight=False, soft_wrap=True
            )
        if self._board is not None:
            self._write_board(line)

    def _write_board(self, line: dict[str, Any]) -> None:
        for key, value in line.items():
            if isinstance(value, int | float) and key != "step":
                self._board.add_scalar(key, value, line["step"])
        self._board.flush()


def note_of(line: dict[str, Any], score: str) -> str:
    """Say in a few words how a run stands; ``data`` is the share of time spent waiting for it.

    Where a tuner weighs what is sent: T, the entries a rank that it chose, and the link's rate as it was fitted. At
    an evaluation: the rank that the others wait for, if there is one.

    >>> note_of({"loss": 1.5, "wire_bytes": 2e6, "dense_bytes": 8e6, "step_seconds": 0.01, "data_share": 0.002}, "")
    'loss 1.500  2.0 MB  4.0x  10.0 ms/step  data 0.2%'
    """
    # A rank that is alone sends nothing.
    ratio = f"  {line['dense_bytes'] / line['wire_bytes']:.1f}x" if line["wire_bytes"] else ""
    slow = f"  slow: rank {line['waits']['slowest']}" if slow_rank(line) else ""
    chosen = f"  T {line['count']:,.0f}" if "count" in line else ""
    speed = number(line.get("bits_per_second"))
    link = f" at {rate(speed)}" if speed is not None else ""
    return (
        f"loss {line['loss']:.3f}{score}  {line['wire_bytes'] / 1e6:.1f} MB{ratio}{chosen}{link}  "
        f"{1e3 * line['step_seconds']:.1f} ms/step  data {line['data_share']:.1%}{slow}"
    )


def board_in(folder: Path | None) -> Any:
    """Return a writer of TensorBoard's, or say what to install; without a folder only the latter."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise ImportError(
            '--tensorboard needs tensorboard, which is not installed: pip install "laconic[tensorboard]"'
        ) from None
    return None if folder is None else SummaryWriter(str(folder))

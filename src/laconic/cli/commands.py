"""The commands by their words, and how one is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from tyro.conf import CascadeSubcommandArgs, DisallowNone, OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from laconic.cli.bench_network import BenchNetwork
from laconic.cli.compare import Compare, ResumeCompare
from laconic.cli.data import Data
from laconic.cli.methods import Methods
from laconic.cli.plan import Plan
from laconic.cli.report import Report
from laconic.cli.runs import fail
from laconic.cli.simulate import Simulate
from laconic.cli.train import ResumeTrain, Train
from laconic.lab.bench_kernels import BenchKernels
from laconic.lab.bench_step import BenchStep
from laconic.lab.bench_wire import BenchWire
from laconic.lab.launch import RankError


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure on this machine what laconic's kernels, steps and messages take, and training over slow links."""

    benchmark: (
        Annotated[BenchKernels, subcommand("kernels")]
        | Annotated[BenchStep, subcommand("step")]
        | Annotated[BenchWire, subcommand("wire")]
        | Annotated[BenchNetwork, subcommand("network")]
    )

    def run(self) -> None:
        """Run the benchmark chosen."""
        self.benchmark.run()


_ABOUT = (
    "Train deep networks over slow links: commands to try, to compare and to measure. "
    "laconic --version says what is at work here."
)
# Options may stand behind any word, and have no prefixes.
MARKERS = (CascadeSubcommandArgs, DisallowNone, OmitArgPrefixes, OmitSubcommandPrefixes)
# A command is a dataclass with a run method.
COMMANDS: Any = (
    Annotated[Methods, subcommand("methods")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[Simulate, subcommand("simulate")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Bench, subcommand("bench")]
)
# With --resume the task and its settings are those of the folder.
RESUMED: Any = Annotated[ResumeTrain, subcommand("train")] | Annotated[ResumeCompare, subcommand("compare")]


def parse(words: Sequence[str]) -> Any:
    """Return the command that the words name, with its settings; its ``run`` runs it."""
    resumes = any(word.split("=")[0] == "--resume" for word in words)
    return tyro.cli(
        RESUMED if resumes else COMMANDS, prog="laconic", description=_ABOUT, args=words, config=MARKERS
    )


def run(words: Sequence[str]) -> None:
    """Run the command that the words name; wrong input ends with an error of one line and exit code 2."""
    try:
        parse(words).run()
    except (ValueError, OSError, ImportError, RankError) as wrong:
        fail(str(wrong))
    except KeyboardInterrupt:
        fail("stopped at once. What was written stays.", code=130)

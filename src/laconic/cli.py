"""The ``laconic`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

try:
    import tyro
    from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Suppress, subcommand

    from laconic.lab.bench_kernels import BenchKernels
    from laconic.lab.bench_step import BenchStep
except ModuleNotFoundError as error:
    if error.name not in ("rich", "tyro"):
        raise
    print(f'laconic: the command line needs {error.name}: pip install "laconic[lab]"', file=sys.stderr)
    raise SystemExit(2) from None


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure on this machine what laconic's kernels and steps take."""

    benchmark: Annotated[BenchKernels, subcommand("kernels")] | Annotated[BenchStep, subcommand("step")]

    def run(self) -> None:
        """Run the benchmark chosen."""
        self.benchmark.run()


# A command is a dataclass with a run method. Of one alone tyro would make no subcommand: the last stands for none.
COMMANDS: Any = Annotated[Bench, subcommand("bench")] | Annotated[None, Suppress]


def main(args: Sequence[str] | None = None) -> None:
    """Run the command that the words name; wrong input ends with an error of one line and exit code 2."""
    command = tyro.cli(
        COMMANDS,
        prog="laconic",
        description="Train deep networks over slow links: commands to try and to measure.",
        args=args,
        config=(OmitArgPrefixes, OmitSubcommandPrefixes),
    )
    command.run()


if __name__ == "__main__":
    main()

"""``laconic bench network``: the works that can be measured over slow links."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import subcommand

from laconic.lab.network.steps import BenchSteps
from laconic.lab.network.target import BenchTarget


@dataclass(frozen=True, kw_only=True)
class BenchNetwork:
    """Measure over real sockets what training takes on slow links, with every peer and method."""

    work: Annotated[BenchSteps, subcommand("steps")] | Annotated[BenchTarget, subcommand("target")] = field(
        default_factory=BenchSteps
    )

    def run(self) -> None:
        """Do the work chosen."""
        self.work.run()

"""WHEN ranks talk: after rounds of local steps. Frozen data; ``laconic.rounds`` carries it out."""

from laconic.local.outer import OuterStep
from laconic.local.periods import AdaComm, DriftBudget, Every, Growing
from laconic.local.steps import LocalSteps

__all__ = ["AdaComm", "DriftBudget", "Every", "Growing", "LocalSteps", "OuterStep"]

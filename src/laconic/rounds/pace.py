"""How many steps this round has: a period and its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laconic.local.periods import Period
from laconic.rounds.sync import Agreed


class Pace:
    """Follows a period from round to round; the same on every rank."""

    def __init__(self, period: Period) -> None:
        self._period, self._state = period, period.init()

    @property
    def every(self) -> int:
        """The steps of this round."""
        return int(self._state["every"])

    def end_round(self, agreed: Agreed | None) -> None:
        """Take in what all ranks agree on of a round in which somebody worked."""
        if agreed is not None and any(agreed.worked):
            self._state = self._period.update(self._state, agreed.seen)

    def state_dict(self) -> dict[str, Any]:
        """Return the period's state, and whose it is."""
        return {"period": repr(self._period), "state": dict(self._state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, if it is that of the same period; another one's begins anew."""
        if state["period"] == repr(self._period):
            self._state = dict(state["state"])

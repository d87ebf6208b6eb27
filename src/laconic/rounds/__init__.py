"""Rounds of local steps carried out: what happens between two syncs, and at one."""

from laconic.rounds.rounds import Rounds

__all__ = ["Rounds"]

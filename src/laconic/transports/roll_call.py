"""After an exchange has failed: which ranks can still be heard, and where they were waiting.

The exchange's own connections are broken by then, so ranks are called through the group's store, over which the
group was made. Ordinary steps never come here. What is found is one sentence; nothing here raises, or waits for
longer than its seconds: the store lives with a rank or with the launcher, and may be lost with them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch.distributed as dist

from laconic.errors import ExchangeError

# Ranks that wait for one time out as far apart as they came; one that died is noticed by most within moments.
TIMED_OUT_SECONDS, CLOSED_SECONDS = 2.0, 1.0
_PAUSE_SECONDS, _GRACE_SECONDS = 0.05, 0.5
# With many ranks, each of which asks for every other, a store would have nothing else to do.
_RANKS_A_SECOND = 500

# Transports are made on all ranks at the same point, so every rank has counted as many. A run that caught an error
# and attached anew is thereby told from the one before, in a group of the same name too.
_enrolled: Counter[str] = Counter()
_held: Counter[tuple[str, int]] = Counter()


@dataclass(frozen=True, kw_only=True)
class Word:
    """What a rank leaves in the store: where it waited, and how that ended."""

    where: str
    how: str


@dataclass(kw_only=True)
class Found:
    """What is known so far: the words of ranks that were heard, and what became of the store."""

    heard: dict[int, Word] = field(default_factory=dict)
    lost: str | None = None
    ended: bool = False


def enroll(group: dist.ProcessGroup) -> None:
    """Count a transport that is made on the group."""
    _enrolled[group.group_name] += 1


def lost(group: dist.ProcessGroup, where: str, error: Exception) -> ExchangeError:
    """Return what to raise where an exchange has failed: where this rank waited, and who was heard since."""
    rank = group.rank()
    return ExchangeError(
        f"rank {rank} of {group.size()} waited in vain in {where}: {error} {hold(group, rank, where, error)} "
        f"A peer has died, stalled past the group's timeout, or left its loop; look at the other ranks' logs."
    )


def hold(group: dist.ProcessGroup, rank: int, where: str, error: Exception) -> str:
    """Leave word that this rank waited in vain, listen for the others', and say in a sentence who was heard.

    With many hundreds of ranks the store may not answer all of them in time; the sentence then says so.
    """
    try:
        timed_out = any(word in str(error).lower() for word in ("timed out", "timeout"))
        seconds = TIMED_OUT_SECONDS if timed_out else CLOSED_SECONDS
        own = Word(where=where, how="timed out" if timed_out else "lost its connection")
        ranks, found = dist.get_process_group_ranks(group), Found(heard={rank: own})
        key, how = _key(group.group_name), {"ranks": len(ranks), "seconds": seconds}
        thread = threading.Thread(target=_ask, args=(group, key, rank, found), kwargs=how, daemon=True)
        thread.start()
        # A store whose host was stopped answers nothing and closes nothing: its client waits for ever.
        thread.join(seconds + _GRACE_SECONDS)
        lost = found.lost if found.ended else "it does not answer"
        return sentence(dict(found.heard), ranks, rank=rank, seconds=seconds, lost=lost)
    except KeyError:
        # A group that torch.distributed does not list: those of a quorum are told by its lighthouse.
        return "Of the other ranks nothing can be asked in a group of this kind."
    except Exception as failure:
        # The error that brought us here must be told, whatever else goes wrong.
        return f"Nothing is known of the other ranks: {failure}"


def _key(group_name: str) -> str:
    """Return the words' place in the store: of this group, of what was attached last, of this failure."""
    attached = (group_name, _enrolled[group_name])
    _held[attached] += 1
    return f"laconic/roll-call/{group_name}/{attached[1]}/{_held[attached]}"


def _ask(group: dist.ProcessGroup, key: str, rank: int, found: Found, *, ranks: int, seconds: float) -> None:
    """Write this rank's word, and read the others' as they come."""
    try:
        # A connection of its own: a client that waits for ever would keep the group's own store from its users.
        own = group.get_group_store()
        # Older releases cannot make one.
        store = getattr(own, "clone", lambda: own)()
        store.set(f"{key}/{rank}", json.dumps(asdict(found.heard[rank])))
        missing = [other for other in range(ranks) if other != rank]
        pause = min(max(_PAUSE_SECONDS, ranks / _RANKS_A_SECOND), seconds / 2)
        last = time.monotonic() + seconds
        while missing and time.monotonic() < last:
            for other in list(missing):
                if store.check([f"{key}/{other}"]):
                    found.heard[other] = Word(**json.loads(store.get(f"{key}/{other}")))
                    missing.remove(other)
            time.sleep(pause)
        if not missing:
            # The store may end with this process: let the others read, too.
            time.sleep(2 * pause)
    except Exception as failure:
        found.lost = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    found.ended = True


def sentence(
    heard: Mapping[int, Word], ranks: Sequence[int], *, rank: int, seconds: float, lost: str | None
) -> str:
    """Say who was heard, and where; ``ranks`` are the global ranks, ``lost`` why the store could not be asked.

    >>> same = Word(where="dense in step 3", how="timed out")
    >>> sentence({0: same, 1: same}, [0, 1], rank=0, seconds=2.0, lost=None)
    'Heard since: ranks 0 (timed out) and 1 (timed out), in this exchange. That is all of them.'
    """
    places = dict[str, list[str]]()
    for other in sorted(heard):
        places.setdefault(heard[other].where, []).append(_named(other, ranks[other], heard[other].how))
    here = places.pop(heard[rank].where)
    parts = [f"{_ranks(here)}, in this exchange" if len(here) > 1 or places else "no other rank"]
    parts += [f"{_ranks(names)}, in {where}" for where, names in places.items()]
    silent = [_named(other, ranks[other]) for other in range(len(ranks)) if other not in heard]
    said = f"Heard since: {'; '.join(parts)}"
    if not silent:
        return f"{said}. That is all of them."
    if lost is None:
        return f"{said}; not heard within {seconds:g} s, lost, stalled or waiting still: {_ranks(silent)}."
    store = "the group's store, which lives with the first rank or with the launcher"
    return f"{said}. Nothing is known of {_ranks(silent)}: {store}, cannot be asked ({lost})."


def _named(place: int, world: int, how: str = "") -> str:
    notes = [f"global rank {world}"] * (world != place) + [how] * bool(how)
    return f"{place} ({', '.join(notes)})" if notes else str(place)


def _ranks(names: Sequence[str]) -> str:
    """Join names as people do."""
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"

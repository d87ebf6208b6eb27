"""What ranks tell each other beside drifts, all of it counted: a table before a sync, sums of vectors."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from laconic import seals
from laconic.collectives import AllGather, AllReduce, Reply, Request, Traffic, Transport


class Meeting:
    """Exchanges that every rank takes part in at the same point, and waits for."""

    def __init__(self, transport: Transport, device: torch.device) -> None:
        self._transport, self._device = transport, device
        self.traffic = Traffic()

    def table(
        self, numbers: list[float], what: str = "what ranks tell each other before a sync"
    ) -> list[list[float]]:
        """Return every rank's numbers, a row a rank."""
        mine = torch.tensor(numbers, dtype=torch.float64).to(self._device)
        rows = self._hold(seals.gathered(mine.view(torch.uint8), "row of a table"), what)
        table: list[list[float]] = rows.cpu().contiguous().view(torch.float64).tolist()
        return table

    def sum_(self, x: Tensor, what: str) -> Tensor:
        """Replace x by the sum over ranks."""
        return self._hold(_ask(AllReduce(send=x)), what)

    def gather(self, x: Tensor, senders: tuple[int, ...], what: str) -> Tensor:
        """Return the senders' vectors, a row a sender; the others send nothing."""
        raw = x.contiguous().view(torch.uint8)
        send = raw if self._transport.rank in senders else raw[:0]
        rows = self._hold(_ask(AllGather(send=send, senders=senders, size=raw.numel())), what)
        return rows.contiguous().view(x.dtype)

    def _hold(self, steps: Generator[Request, Reply, Tensor], what: str) -> Tensor:
        before = Traffic.of(self._transport)
        future = self._transport.start(steps, label=what)
        self._transport.drain()
        self.traffic += Traffic.of(self._transport) - before
        return future.value()


def _ask(request: Request) -> Generator[Request, Reply, Tensor]:
    reply = yield request
    return reply

"""Ranks that run ordinary loops, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from laconic.transports import Lockstep
from laconic.transports.lockstep import Port

T = TypeVar("T")


def run_ranks(world_size: int, fn: Callable[[Port], T], *, timeout_seconds: float = 30) -> list[T]:
    """Call ``fn(port)`` in a thread for each rank and return what they return, in rank order.

    What the first rank raises ends all and is raised here; so is ``TimeoutError`` if they take too long.
    """
    world, results, errors = Lockstep(world_size, threaded=True), {}, []

    def serve(port: Port) -> None:
        try:
            results[port.rank] = fn(port)
        except BaseException as error:
            errors.append(error)
            world.abort(error)
        finally:
            port.leave()

    threads = [threading.Thread(target=serve, args=(port,), daemon=True) for port in world.ports]
    for thread in threads:
        thread.start()
    last = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, last - time.monotonic()))
    late = [str(rank) for rank, thread in enumerate(threads) if thread.is_alive()]
    if late:
        error = TimeoutError(f"rank {', '.join(late)} of {world_size} was not done in {timeout_seconds:g} s.")
        # Those that wait end by it; one that is busy is left behind.
        world.abort(error)
        for thread in threads:
            thread.join(0.2)
        raise error
    # What others raise because of an error may come before the error itself.
    for error in [e for e in errors if e.__cause__ not in errors] or errors:
        raise error
    return [results[rank] for rank in range(world_size)]

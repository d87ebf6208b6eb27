"""Who is here now: one worker's part in torchft's quorum. Each worker is a replica group of one process."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from laconic.errors import ExchangeError, GroupError, LaconicError

# Rounds that fail one behind the other, before a worker gives up.
_MOST_FAILURES = 20
# How often a lighthouse that does not answer is asked again; patience ends before that.
_MOST_ASKED = 1_000_000
# Between two looks whether enough have come.
_PAUSE_SECONDS = 0.2
State = dict[str, Any]


class Members:
    """Meets the others at a lighthouse, and has a group of those who are here.

    ``give`` is asked for what a worker that comes needs; on that worker ``take`` is handed it.
    """

    def __init__(
        self,
        *,
        lighthouse: str,
        name: str,
        host: str,
        least: int,
        timeout: float,
        patience: float,
        give: Callable[[], State],
        take: Callable[[State], None],
    ) -> None:
        if find_spec("torchft") is None:
            raise ModuleNotFoundError(
                "workers that come and go need torchft, which is not installed: pip install 'laconic[torchft]'."
            )
        torchft, waits = import_module("torchft"), timedelta(seconds=timeout)
        host = host or socket.gethostname()
        # The name of the meeting that the group was made at, the same for all who are in it.
        self.meeting = ""
        self._lighthouse, self._least, self._patience = lighthouse, least, patience
        self._ends = ExitStack()
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._group = torchft.ProcessGroupGloo(timeout=waits)
        self._ends.callback(self._group.shutdown)
        configure = self._group.configure

        def configure_and_note(address: str, *args: Any, **kwargs: Any) -> None:
            configure(address, *args, **kwargs)
            self.meeting = address

        self._group.configure = configure_and_note
        # Weights at the start are the first worker's: attach sends them.
        self._manager = torchft.Manager(
            pg=self._group, load_state_dict=None, state_dict=None, min_replica_size=least, use_async_quorum=False,
            timeout=waits, quorum_timeout=timedelta(seconds=patience), connect_timeout=waits, rank=0, world_size=1,
            store_addr=host, store_port=self._store.port, lighthouse_addr=lighthouse, replica_id=name,
            hostname=host, init_sync=False, max_retries=_MOST_FAILURES, quorum_retries=_MOST_ASKED,
        )  # fmt: skip
        self._manager.register_state_dict_fn("laconic", take, give)
        self._ends.callback(self._manager.shutdown, wait=False)

    @property
    def step(self) -> int:
        """How many meetings have come to a good end."""
        step: int = self._manager.current_step()
        return step

    @property
    def group(self) -> dist.ProcessGroup:
        """The group of those who are here."""
        group: dist.ProcessGroup = self._group.parent
        return group

    def meet(self) -> None:
        """Wait until enough are here, and have a group of them; raise ``ExchangeError`` if none could be made."""
        last = time.monotonic() + self._patience
        self._ask()
        # A lighthouse may be content with fewer.
        while self._manager.num_participants() < self._least:
            if time.monotonic() > last:
                raise self._nobody("too few came")
            time.sleep(_PAUSE_SECONDS)
            self._ask()
        broken = self._manager.errored()
        if broken is not None:
            raise ExchangeError(f"the workers met, and could not be connected: {broken.original_exception}")

    def _ask(self) -> None:
        try:
            with warnings.catch_warnings():
                # What comes from another worker is read where torch has received it; it is not written to.
                warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
                self._manager.start_quorum()
        except TimeoutError as error:
            raise self._nobody(str(error)) from error

    def _nobody(self, why: str) -> LaconicError:
        return LaconicError(
            f"in {self._patience:g} s no {self._least} workers met at {self._lighthouse}. Start more workers, see "
            f"whether torchft_lighthouse runs there, or wait for longer (patience=): {why}"
        )

    def fail(self, error: Exception) -> None:
        """Say that what this meeting was for did not succeed."""
        self._manager.report_error(error)
        # Where ranks disagree all of them say so at the same point; else others may wait for this one, in vain.
        if not isinstance(error, GroupError):
            self._group.abort()

    def commit(self) -> bool:
        """End the meeting; return whether it came to a good end on this worker."""
        try:
            good: bool = self._manager.should_commit()
        except RuntimeError as error:
            raise LaconicError(
                f"{_MOST_FAILURES} meetings one behind the other did not come to a good end; the log has their "
                f"errors. See to the network between the workers, and start this one anew. ({error})"
            ) from error
        return good

    def close(self) -> None:
        """Leave: the others go on without this worker."""
        self._ends.close()

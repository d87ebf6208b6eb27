"""What a rank of a crew does: join the others, do the work, leave what it returned in the crew's folder.

``run_crew`` starts it as ``python -m laconic.lab.network.rank FOLDER RANK``.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from laconic.lab.network.crew import SAID, STORE, WORK

# A rank whose crew was killed ends by itself, this long after it should have.
_GRACE_SECONDS = 30
_CALLBACK_SECONDS = 0.1


def join(folder: Path, group: str, seconds: float) -> None:
    """Join the other ranks in a gloo group; what it waits for longer than ``seconds`` is an error."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Ranks find each other through a file, one a group: nothing but their work is on the link.
    store = FileStore(str(folder / f"{STORE}-{group}"), ranks)
    timeout = timedelta(seconds=seconds)
    store.set_timeout(timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)


def leave() -> None:
    """Leave the group; ranks that still wait for this one in it are told."""
    if not dist.is_initialized():
        return
    group = dist.group.WORLD
    dist.destroy_process_group()
    # A group that goes with the last of its own threads' callbacks would have that thread wait for itself.
    time.sleep(_CALLBACK_SECONDS)
    del group


def rejoin(group: str, seconds: float) -> None:
    """Leave the group, whatever state it is in, and join the same ranks in a fresh one, under another name."""
    leave()
    join(own_folder(), group, seconds)


def own_folder() -> Path:
    """Return the crew's folder, which all its ranks share and which is removed with it."""
    return Path(os.environ["LACONIC_CREW"])


def say(text: str) -> None:
    """Tell whoever started the crew how far it is."""
    half = own_folder() / f".said-{os.environ['RANK']}"
    half.write_text(text)
    half.replace(own_folder() / SAID)


def main(folder: Path, rank: int) -> None:
    """Do the work; an error's traceback is left in a file that tells when it was written."""
    # A terminal sends Ctrl-C to all processes; the one that started the ranks kills them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = pickle.loads((folder / "path.pickle").read_bytes())
    os.environ["LACONIC_CREW"] = str(folder)
    try:
        job: dict[str, Any] = pickle.loads((folder / WORK).read_bytes())
        signal.alarm(int(job["seconds"]) + _GRACE_SECONDS)
        torch.set_num_threads(job["threads"])
        join(folder, "crew", job["seconds"])
        found = pickle.dumps(job["work"](*job["args"]))
    except Exception:
        (folder / f"error-{time.monotonic_ns():020d}-{rank}").write_text(traceback.format_exc())
        raise
    half = folder / f".rank-{rank}.half"
    half.write_bytes(found)
    half.replace(folder / f"rank-{rank}.pickle")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Its work is on disk: to clear up all that torch and peers have loaded would take seconds, and can go wrong.
    os._exit(0)

"""A link as torch.distributed.checkpoint saves and loads it: every rank's own part, on any number of ranks."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from laconic.integrations.link import Link
from laconic.layout import here, is_sharded
from laconic.resharding import resharded

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.tensor import DTensor


class LinkState:
    """A ``Stateful`` for torch.distributed.checkpoint, to be saved beside the model and the optimizer.

    Plain tensors count there as the same on every rank, and one rank's would be kept; memory is each rank's own. So
    each saves under its rank: what is owed by parameter name, the rest as bytes that hold no code, and with local
    steps its parameters, which within a round are its own too.

        dcp.save({"model": model.state_dict(), "link": laconic.LinkState(link)}, checkpoint_id=folder)
        laconic.LinkState(link).load_from(folder)     # after attach, and after the model was loaded
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part, copied, under its rank."""
        state = self._link.state_dict()
        part: dict[str, Any] = {"memory": state.pop("memory"), "rest": _bytes_of(state)}
        if self._link.rounds is not None:
            part["parameters"] = {name: here(p).detach().clone() for name, p in self._link.parameters.items()}
        return {_name(self._link): part}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this rank's part; with local steps its parameters too."""
        part = state[_name(self._link)]
        self._link.load_state_dict(_whole(part))
        with torch.no_grad():
            for name, value in part.get("parameters", {}).items():
                here(self._link.parameters[name]).copy_(value)
        if self._link.rounds is not None:
            self._link.rounds.holding.wrote()

    def load_from(self, checkpoint: str | os.PathLike[str], *, key: str = "link") -> None:
        """Go on from a checkpoint that as many ranks have saved, or another number of them.

        As many go on to the same bits. On others what is owed is merged or shared out (``resharded``), and every
        rank reads what all have saved. ``key`` is what it was saved under.
        """
        # Imported here: it takes longer than all of laconic.
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        link, ranks = self._link, self._link.transport.world_size
        reader = FileSystemReader(checkpoint)
        parts = _room(reader.read_metadata(), key, _shard(link))
        alike, mine = len(parts) == ranks, _name(link)
        parts = {mine: parts[mine]} if alike else parts
        with warnings.catch_warnings():
            # Every rank reads for itself, which torch takes for a mistake.
            warnings.simplefilter("ignore", UserWarning)
            load({key: parts}, storage_reader=reader, no_dist=True)
        if alike:
            self.load_state_dict(parts)
            return
        models = models_of(parts.values())
        states = resharded([_whole(part) for part in parts.values()], ranks=ranks, models=models)
        # The link moves the model to what all have agreed on.
        link.load_state_dict(states[link.transport.rank])


def models_of(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Tensor]] | None:
    """Return the parameters that each rank has saved; None for methods of every step, which need not."""
    models = [part["parameters"] for part in parts if "parameters" in part]
    return models or None


def _name(link: Link) -> str:
    return f"rank-{link.transport.rank:05d}{_shard(link)}"


def _shard(link: Link) -> str:
    """What comes behind a rank in its name: which shard of the model it holds, where that is sharded."""
    p = next(iter(link.parameters.values()))
    if not is_sharded(p):
        return ""
    mesh = cast("DTensor", p).device_mesh
    return f"-shard-{mesh.get_local_rank():05d}-of-{mesh.size():05d}"


def _bytes_of(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _whole(part: dict[str, Any]) -> dict[str, Any]:
    rest: dict[str, Any] = torch.load(io.BytesIO(part["rest"]), weights_only=True, map_location="cpu")
    # Where nothing is owed there is nothing to save, and an empty folder is none.
    return rest | {"memory": part.get("memory", {})}


def _room(metadata: Metadata, key: str, shard: str) -> dict[str, Any]:
    """Return room for what every rank with this shard has saved under a key, in the order of ranks."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    room: dict[str, Any] = {}
    others: set[str] = set()
    for name, path in sorted((metadata.planner_data or {}).items()):
        if path[0] != key or not str(path[1]).startswith("rank-"):
            continue
        if not re.fullmatch(rf"rank-\d+{shard}", str(path[1])):
            others.add(str(path[1]))
            continue
        about, inner = metadata.state_dict_metadata[name], room
        for step in path[1:-1]:
            inner = inner.setdefault(step, {})
        # What is no tensor is bytes, of any length.
        if isinstance(about, BytesStorageMetadata):
            inner[path[-1]] = b""
        else:
            inner[path[-1]] = torch.empty(about.size, dtype=about.properties.dtype)
    if not room and others:
        raise ValueError(
            f"the checkpoint has the link of {', '.join(sorted(others)[:4])}, and this rank is one of "
            f"'rank-00000{shard}': what is owed of a shard is loaded on as many shards as it was saved on."
        )
    if not room:
        raise ValueError(
            f"the checkpoint has nothing of a link under {key!r}. Give the key that it was saved under."
        )
    return room

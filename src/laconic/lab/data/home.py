"""Where data lies when nobody says: the environment is read here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$LACONIC_DATA``, else ``$XDG_DATA_HOME/laconic``, else ``~/.local/share/laconic``.

    >>> default_home({"LACONIC_DATA": "/data"}).as_posix()
    '/data'
    """
    if environment.get("LACONIC_DATA"):
        return Path(environment["LACONIC_DATA"]).expanduser()
    if environment.get("XDG_DATA_HOME"):
        return Path(environment["XDG_DATA_HOME"]) / "laconic"
    return Path.home() / ".local" / "share" / "laconic"

"""Every package that our own runs install is pinned: what those need in turn, too."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def _pins() -> dict[str, str]:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def _wanted_by(name: str, extras: frozenset[str]) -> set[tuple[str, frozenset[str]]]:
    """Return what an installed package needs here; one that is not here has its reason in a marker."""
    try:
        needs = [Requirement(each) for each in metadata.distribution(name).requires or ()]
    except metadata.PackageNotFoundError:
        return set()
    here = [n for n in needs if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in ("", *extras))]
    return {(canonicalize_name(n.name), frozenset(n.extras)) for n in here}


def test_every_package_of_a_developers_installation_is_pinned():
    known, left = set(), {("laconic", frozenset({"dev"}))}
    while left:
        known |= left
        left = {need for each in left for need in _wanted_by(*each)} - known
    names = {name for name, _ in known} - {"laconic"}
    assert len(names) > 30, "the walk through what packages need has found nothing"
    assert sorted(names - _pins().keys()) == []


def test_a_pin_is_one_version():
    assert all(version and "*" not in version for version in _pins().values())

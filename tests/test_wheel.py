"""What is built: the wheel has every file that git tracks in the package and no other; its page stands alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from datetime import date
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_MEGABYTES = 5
# What a built package says about itself, beside the package.
ABOUT = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def _tracked(*folders: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist, made as a release makes them."""
    pytest.importorskip("hatch_fancy_pypi_readme", reason="the build wants hatchling and hatch-fancy-pypi-readme")
    builders = pytest.importorskip("hatchling.builders.wheel", reason="the build wants hatchling")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("what should be built is what git tracks, and here is no git")
    from hatchling.builders.sdist import SdistBuilder

    out = tmp_path_factory.mktemp("dist")
    for builder in (builders.WheelBuilder, SdistBuilder):
        [_] = builder(str(ROOT)).build(directory=str(out), versions=["standard"])
    return out


@pytest.fixture(scope="module")
def inside(built) -> dict[str, bytes]:
    """The wheel's files."""
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(inside) -> Message:
    [name] = [name for name in inside if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(inside[name])


def test_the_wheel_has_what_git_tracks_in_the_package_and_no_more(inside):
    package = {name for name in inside if ".dist-info/" not in name}
    assert package == {name.removeprefix("src/") for name in _tracked("src/laconic")}, "git add what is new"
    assert {"laconic/py.typed", "laconic/lab/report/page.css", "laconic/plan/page.js"} <= package
    assert {name.split(".dist-info/")[1] for name in inside.keys() - package} == ABOUT
    for name in package:
        assert inside[name] == (ROOT / "src" / name).read_bytes(), name


def test_the_sdist_has_what_git_tracks_but_for_results(built):
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {name.split("/", 1)[1] for name in archive.getnames()} - {"PKG-INFO"}
    tracked, results = _tracked(), _tracked("benchmarks/results")
    hidden = {name for name in tracked if name.startswith(".")}
    assert results, "nothing is left out"
    assert tracked - results - hidden - files == set(), "name it in only-include of pyproject.toml"
    assert files & results == set()
    assert {name.split("/")[0] for name in files} <= {name.split("/")[0] for name in tracked}
    assert sdist.stat().st_size < MOST_MEGABYTES * 1e6


def test_the_version_is_one(metadata):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert metadata["Version"] == project["version"] == re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1]
    assert metadata["License-Expression"] == project["license"]
    assert f"license: {project['license']}\n" in citation


def test_the_page_of_the_package_leads_to_no_file_beside_it(metadata):
    page = metadata.get_payload(decode=True).decode()
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"\]\((?!https?://)", page) == []
    # Words, headings and code stay as they are.
    assert re.findall(r"^#.*", page, re.MULTILINE) == re.findall(r"^#.*", readme, re.MULTILINE)
    assert page.count("```") == readme.count("```")
    assert "docs/start.md" in page


def test_the_citation_has_what_a_citation_file_must_have():
    """scripts/release-check holds it to the whole schema."""
    yaml = pytest.importorskip("yaml", reason="the citation is read by PyYAML, which kubernetes-validate brings")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["type"] == "software"
    assert citation["authors"] == [{"name": "The laconic developers"}]
    assert date.fromisoformat(citation["date-released"])

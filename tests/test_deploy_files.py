"""The launch files, read: shells take them, Kubernetes' schemas do, and what stands in two places is the same."""

from __future__ import annotations

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SHELL = [
    p
    for p in sorted([*DEPLOY.iterdir(), *(ROOT / "scripts").iterdir()])
    if p.is_file() and p.read_bytes().startswith(b"#!/usr/bin/env bash")
]
KUBERNETES = "1.33"
every_script = pytest.mark.parametrize("script", SHELL, ids=lambda p: p.name)


def _read(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="manifests are read by PyYAML, which kubernetes-validate brings")
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def _hold_to_schema(document: dict[str, Any]) -> None:
    pytest.importorskip("kubernetes_validate", reason="Kubernetes' schemas come with kubernetes-validate")
    if int(version("jsonschema").split(".")[0]) < 4:
        pytest.skip("kubernetes-validate wants jsonschema 4, which it does not say")
    import kubernetes_validate

    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def _variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_every_launch_file_is_looked_at():
    assert {p.name for p in DEPLOY.iterdir()} == {
        "host", "slurm.sbatch", "slurm-torchrun.sbatch", "kubernetes-job.yaml", "kubernetes-pytorchjob.yaml",
    }  # fmt: skip
    assert {"host", "slurm.sbatch", "slurm-torchrun.sbatch", "release-check"} <= {p.name for p in SHELL}


@every_script
def test_bash_can_read_it_and_it_may_be_run(script):
    read = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    assert script.stat().st_mode & 0o111


@every_script
def test_shellcheck_finds_nothing(script):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    found = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_a_name_without_an_address_is_said():
    """It ended without a word: in a pipeline that fails, so does the line that it stands on."""
    words = [str(DEPLOY / "host"), "no-such-host.invalid", "2", "1", "train.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "the name no-such-host.invalid has no address here" in done.stderr


def test_service_and_job_fit_the_schemas():
    for document in _read("kubernetes-job.yaml"):
        _hold_to_schema(document)


def test_the_schemas_refuse_what_is_wrong():
    _, job = _read("kubernetes-job.yaml")
    job["spec"]["parallelisms"] = 2
    with pytest.raises(Exception, match="parallelisms"):
        _hold_to_schema(job)


def test_pods_of_the_job_meet_at_the_name_that_the_service_gives_the_first():
    service, job = _read("kubernetes-job.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["subdomain"] == service["metadata"]["name"]
    said = _variables(container)
    assert said["FIRST_HOST"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert said["PORT"] == str(container["ports"][0]["containerPort"])
    assert spec["completionMode"] == "Indexed"
    assert said["HOSTS"] == str(spec["completions"]) == str(spec["parallelism"])
    _a_core_a_rank(container)


def _a_core_a_rank(container: dict[str, Any]) -> None:
    resources = container["resources"]
    assert resources["limits"] == resources["requests"]
    said = _variables(container)
    assert int(resources["limits"]["cpu"]) == int(said["RANKS"]) * int(said["OMP_NUM_THREADS"])
    mounted = {volume["name"]: volume["mountPath"] for volume in container["volumeMounts"]}
    assert said["RUN"].startswith(f"{mounted['runs']}/")


def test_the_pytorchjob_has_the_operators_form_and_pods_that_fit_the_schema():
    """The whole schema is the operator's, which no package that we use has: names and kinds are checked here."""
    [job] = _read("kubernetes-pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert set(job["spec"]) == {"nprocPerNode", "runPolicy", "pytorchReplicaSpecs"}
    assert set(job["spec"]["runPolicy"]) == {"backoffLimit", "cleanPodPolicy"}
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        assert set(replica) == {"replicas", "restartPolicy", "template"}
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        [container] = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch", "the operator looks for this name"
        assert _variables(container)["HOSTS"] == str(sum(r["replicas"] for r in replicas.values()))
        _a_core_a_rank(container)
    for replica in replicas.values():
        _hold_to_schema({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}} | replica["template"])

"""The launch files, run: two hosts in network namespaces, Slurm by a stand-in, the command of a pod in a shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laconic.cli.places import joined
from laconic.lab.network.hosts import missing, shaped_hosts

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LIMIT_SECONDS = 90
SMALL = "logreg --steps 3"
# One rank a host meets the other, and says how many threads it may use.
MEET = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
every = [None] * dist.get_world_size()
dist.all_gather_object(every, (os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], os.environ["OMP_NUM_THREADS"]))
if dist.get_rank() == 0:
    print("met", *("/".join(each) for each in every))
dist.destroy_process_group()
"""
# No Slurm: srun runs a task on each of two nodes, which are this machine, and ends with the worst of their codes.
# The variables are those that Slurm 22.05 gave on two nodes, as far as anything here reads them.
SRUN = """#!/usr/bin/env bash
[ "$1" = --kill-on-bad-exit=1 ] || { echo "srun: what is $1?" >&2; exit 2; }
shift
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST='127.0.0.[1-2]' SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_LOCALID=0
for node in 0 1; do
    SLURM_PROCID=$node SLURM_NODEID=$node SLURMD_NODENAME=127.0.0.$((node + 1)) "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || worst=$?; done
exit "${worst:-0}"
"""
# In Python's place: what it was to do, and what a rank could have read.
TELL = """#!/usr/bin/env bash
printf '%s\\0' "$@" >"$TOLD/words-$SLURM_PROCID"
env -0 >"$TOLD/environment-$SLURM_PROCID"
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = "show hostnames 127.0.0.[1-2]" ] || { echo "scontrol: what is $*?" >&2; exit 2; }
printf '%s\\n' 127.0.0.1 127.0.0.2
"""
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def _environment(**more: str) -> dict[str, str]:
    """This environment, with this Python as python, and nothing that a launcher would have said."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PET_"))}
    return known | {"PATH": f"{Path(sys.executable).parent}:{known['PATH']}", "PYTHON": sys.executable} | more


def _free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return asking.getsockname()[1]


@contextmanager
def _ended(started: list[subprocess.Popen[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    try:
        yield started
    finally:
        # torchrun, if it is asked, ends its ranks; killed, it leaves them.
        for process in started:
            process.terminate()
        for process in started:
            process.communicate(timeout=LIMIT_SECONDS)


def _in_shells(command: list[str], environments: list[dict[str, str]]) -> list[str]:
    """Run a command in each environment at once; return what each printed, if all ended well."""
    with _ended([]) as started:
        for environment in environments:
            one = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            started.append(one)
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
    return said


def _result(run: Path) -> dict[str, object]:
    assert json.loads((run / "environment.json").read_text())["ranks"] == 2
    return json.loads((run / "result.json").read_text())


@pytest.fixture
def hosts():
    """Two hosts of their own; skip where there can be none."""
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    if "laconic-" in listed:
        pytest.skip("a benchmark has hosts up")
    try:
        with shaped_hosts(2) as two:
            yield two
    except OSError as error:
        pytest.skip(f"no hosts here: {error}")


def test_two_hosts_meet_over_their_cables(hosts, tmp_path):
    """torchrun would neither find the host of the meeting nor its own address by the machine's name here."""
    words = [str(DEPLOY / "host"), f"{hosts.address(0)}:29507", "2", "1", str(ROOT / "examples" / "ddp.py")]
    logs = [tmp_path / f"host-{host}.log" for host in range(2)]
    started = [hosts.start(host, words, {"PYTHON": sys.executable}, log) for host, log in enumerate(logs)]
    try:
        codes = [process.wait(LIMIT_SECONDS) for process in started]
    finally:
        for process in started:
            process.terminate()
            process.wait(LIMIT_SECONDS)
    said = [log.read_text() for log in logs]
    assert codes == [0, 0], "\n".join(said)
    for host, text in enumerate(said):
        assert f"deploy/host: {hosts.address(host)} on {hosts.interface}, 1 ranks of 2 hosts" in text
    sent = int(re.search(r"([\d,]+) bytes sent by this rank", said[0])[1].replace(",", ""))
    assert all(hosts.sent_bytes(host) > sent for host in range(2)), "it went over another interface"


def _executable(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def slurm(tmp_path):
    """Return what runs a batch file as the first node of two does."""
    tools = Path(_executable(tmp_path / "tools" / "srun", SRUN)).parent
    _executable(tools / "scontrol", SCONTROL)
    job = {"SLURM_JOB_ID": str(_free_port() - 20000), "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    job |= {"SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_SUBMIT_DIR": str(tmp_path), "GLOO_SOCKET_IFNAME": "lo"}

    def run(name: str, *words: str, **more: str) -> str:
        environment = _environment(**(job | more))
        environment["PATH"] = f"{tools}:{environment['PATH']}"
        return _in_shells([str(DEPLOY / name), *words], [environment])[0]

    return run


def test_srun_starts_ranks_that_can_join_by_what_it_says(slurm, tmp_path):
    """That ranks so started train is a test of laconic train."""
    python = _executable(tmp_path / "tell" / "python", TELL)
    slurm("slurm.sbatch", *SMALL.split(), PYTHON=python, TOLD=str(tmp_path))
    for rank in range(2):
        words = (tmp_path / f"words-{rank}").read_text().split("\0")[:-1]
        assert words[:6] == ["-m", "laconic", "train", *SMALL.split()]
        assert Path(words[words.index("--out") + 1]).parent == tmp_path / "runs"
        assert "--elastic" in words
        said = dict(
            line.split("=", 1) for line in (tmp_path / f"environment-{rank}").read_text().split("\0") if line
        )
        assert said["OMP_NUM_THREADS"] == said["SRUN_CPUS_PER_TASK"] == "1"
        place = joined(said)
        assert place is not None
        assert (place.rank, place.ranks, place.local_rank, place.local_ranks) == (rank, 2, 0, 1)
        assert place.address == "127.0.0.1"


def test_one_torchrun_a_node_starts_a_program(slurm, tmp_path):
    (tmp_path / "meet.py").write_text(MEET)
    assert "met 0/0/1 0/1/1\n" in slurm("slurm-torchrun.sbatch", str(tmp_path / "meet.py"))


def _pod(name: str) -> tuple[list[str], dict[str, str]]:
    yaml = pytest.importorskip("yaml", reason="manifests are read by PyYAML, which kubernetes-validate brings")
    *_, job = yaml.safe_load_all((DEPLOY / name).read_text())
    spec = job["spec"]
    template = spec["template"] if "template" in spec else spec["pytorchReplicaSpecs"]["Master"]["template"]
    [container] = template["spec"]["containers"]
    if shutil.which("python", path=_environment()["PATH"]) is None:
        pytest.skip("the command of a pod wants a python on the path")
    said = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return [*container["command"], *container["args"]], said


def test_the_command_of_the_jobs_pods_trains(tmp_path):
    command, said = _pod("kubernetes-job.yaml")
    here = said | QUIET | {"FIRST_HOST": "127.0.0.1", "PORT": str(_free_port()), "POD_IP": "127.0.0.1"}
    here |= {"RANKS": "1", "RUN": str(tmp_path / "run"), "TRAINING": SMALL}
    _in_shells(command, [_environment(**here, JOB_COMPLETION_INDEX=index) for index in "01"])
    assert _result(tmp_path / "run")["steps"] == 3


def test_the_command_of_the_pytorchjobs_pods_starts_ranks_that_meet(tmp_path):
    """What they train is the Job's: here a stand-in for laconic says that they have met, and with what words."""
    command, said = _pod("kubernetes-pytorchjob.yaml")
    (tmp_path / "laconic").mkdir()
    (tmp_path / "laconic" / "__init__.py").touch()
    (tmp_path / "laconic" / "__main__.py").write_text(f"{MEET}import sys\nprint('words', *sys.argv[1:])\n")
    here = said | QUIET | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2"}
    here |= {"RANKS": "1", "RUN": str(tmp_path / "run"), "PYTHONPATH": str(tmp_path)}
    first, second = _in_shells(command, [_environment(**here, RANK=index) for index in "01"])
    assert "met 0/0/1 0/1/1\n" in first
    words = f"words train {said['TRAINING']} --out {tmp_path / 'run'} --elastic --timeout-seconds 600\n"
    assert words in first
    assert words in second

"""Workers over torchft that are killed, and joined by others: those who are left go on without a restart."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fault_bench import FaultError, Scenario
from fault_ranks import context

import laconic
from laconic.lab.method_words import make

_WORDS = ("celgc:every=4", "spartan:every=4:density=0.1", "celgc:every=4:clip=1.0:send=topk+density=0.1")
_ROUNDS, _EVERY = 20, 4
_LIMIT_SECONDS = 90.0
_HEARTBEAT_MILLISECONDS = 1000
_STEP_SECONDS = 0.03


def lost_and_come(story: Scenario) -> str:
    """Of three workers one or two are killed at some moment, and as many come: all who are left have one model."""
    chance = story.chance
    story.word = chance.choice(_WORDS)
    deaths = {f"w{n}": chance.randint(3 * _EVERY, (_ROUNDS - 6) * _EVERY) for n in chance.sample(range(3), 1)}
    comes = {f"w{n + 3}": chance.uniform(1.0, 4.0) for n in range(chance.randint(0, 2))}
    if comes and chance.random() < 0.3:
        # One who came is lost, too.
        deaths[next(iter(comes))] = chance.randint(2 * _EVERY, 6 * _EVERY)
    moments = {name: chance.choice(("backward", "step", "meeting")) for name in deaths}
    told = [f"{name} is killed in its step {step}, {moments[name]}" for name, step in deaths.items()]
    story.what = ", ".join([*told, *(f"{name} comes after {seconds:.1f} s" for name, seconds in comes.items())])
    story.folder.mkdir()
    names = [*(f"w{n}" for n in range(3)), *comes]
    lighthouse, address = _lighthouse(story.folder)
    workers = {}
    try:
        began = time.monotonic()
        for name in names:
            time.sleep(max(0.0, comes.get(name, 0.0) + began - time.monotonic()))
            args = (name, address, story.word, deaths.get(name), moments.get(name, ""), story.folder)
            workers[name] = context.Process(target=_worker, args=args, daemon=True)
            workers[name].start()
        _judge(story, workers, deaths, began)
    finally:
        for process in [*workers.values(), lighthouse]:
            process.kill()
            process.join()
    return "went on"


def _judge(story: Scenario, workers: dict[str, Any], deaths: dict[str, int], began: float) -> None:
    for process in workers.values():
        process.join(max(0.1, began + _LIMIT_SECONDS - time.monotonic()))
    ends: dict[str, dict[str, Any]] = {}
    for name, process in workers.items():
        if process.exitcode is None:
            raise FaultError(f"HUNG: {name} of {sorted(workers)}")
        if name in deaths and process.exitcode == -signal.SIGKILL:
            continue
        if name in deaths and name in ("w0", "w1", "w2"):
            raise FaultError(f"NOT STRUCK: {name} was not killed")
        said = story.folder / name
        if not said.exists():
            raise FaultError(f"UNCLEAR: {name} ended with {process.exitcode} and said nothing")
        ends[name] = json.loads(said.read_text())
        if "error" in ends[name]:
            raise FaultError(f"LOST: {name} ended with {ends[name]['error'][:300]}")
    models = {name: end["model"] for name, end in ends.items()}
    if len(set(models.values())) != 1:
        raise FaultError(f"LOST: models differ: {models}")
    worst = max(end["last"] / end["first"] for name, end in ends.items() if name in ("w0", "w1", "w2"))
    if not worst < 0.5:
        raise FaultError(f"LOST: nothing was learnt: the loss is {worst:.2f} of what it was at first")


def _lighthouse(folder: Path) -> tuple[Any, str]:
    place = folder / "address"
    process = context.Process(target=_serve, args=(place,), daemon=True)
    process.start()
    last = time.monotonic() + 20.0
    while not place.exists() and time.monotonic() < last:
        time.sleep(0.02)
    return process, place.read_text()


def _serve(place: Path) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=3000, quorum_tick_ms=10,
        heartbeat_timeout_ms=_HEARTBEAT_MILLISECONDS,
    )  # fmt: skip
    half = place.with_suffix(".half")
    half.write_text(f"http://127.0.0.1:{server.address().rsplit(':', 1)[1]}")
    half.replace(place)
    signal.pause()


def _worker(name: str, address: str, word: str, death: int | None, moment: str, folder: Path) -> None:
    for talks in ("torchft", "laconic"):
        logging.getLogger(talks).setLevel(logging.CRITICAL)
    # torchft's server tells of every request there.
    sys.stderr = io.StringIO()
    torch.set_num_threads(1)
    try:
        said = _train(name, address, word, death, moment)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    (folder / f"{name}.half").write_text(json.dumps(said))
    (folder / f"{name}.half").replace(folder / name)
    # The last one to leave may be asked for a moment longer.
    with suppress(Exception):
        os._exit(0)


def _train(name: str, address: str, word: str, death: int | None, moment: str) -> dict[str, Any]:
    from laconic.integrations.quorum import Quorum

    torch.manual_seed(random.Random(name).randrange(2**30))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth, losses, step = torch.linspace(-1, 1, 8), list[float](), 0
    method: laconic.Method = make(word, clip=1.0)
    with Quorum(
        model, optimizer, method, lighthouse=address, name=name, host="127.0.0.1", least=2, timeout=10, patience=30
    ) as quorum:
        while quorum.round < _ROUNDS:
            step += 1
            x = torch.randn(16, 8)
            loss = (model(x) - (x @ truth)[:, None]).square().mean()
            dies = death is not None and step >= death
            if dies and moment == "backward":
                model[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            loss.backward()
            if dies and moment == "meeting":
                start = quorum.link.transport.start
                quorum.link.transport.start = lambda *a, start=start, **k: _die(start, *a, **k)  # type: ignore
            if dies and moment == "step":
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            time.sleep(_STEP_SECONDS)
    raw = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    few = max(1, min(8, len(losses) // 2))
    return {
        "model": hashlib.sha256(raw).hexdigest(), "first": sum(losses[:few]) / few, "last": sum(losses[-few:]) / few
    }  # fmt: skip


def _die(start: Any, *args: Any, **kwargs: Any) -> None:
    """Say something to the others, and die before they can have answered."""
    start(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

"""Workers over torchft, for tests: real processes and a real lighthouse, who go on from one meeting to the next."""

from __future__ import annotations

import logging
import os
import traceback
from typing import ClassVar

import torch

import laconic
from pool import launch

EVERY = 4
TABLE, VOTE = "what ranks tell each other before a sync", "the vote that ends a round"
METHOD = laconic.celgc(EVERY, clip=1.0, restart=None, send=laconic.topk(0.1, whole_below=0))


def _lighthouse(port, least, pipe):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind=f"127.0.0.1:{port}",
        min_replicas=least,
        join_timeout_ms=5000,
        quorum_tick_ms=10,
        heartbeat_timeout_ms=1000,
    )
    pipe.send(f"http://127.0.0.1:{server.address().rsplit(':', 1)[1]}")
    pipe.recv()


def _worker(name, address, method, trouble, pipe):
    logging.getLogger("torchft").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        _train(name, address, method, trouble, pipe)
    except Exception as error:
        pipe.send({"error": type(error).__name__, "message": traceback.format_exc()})
    os._exit(0)


def _flat(parts):
    return torch.cat([part.detach().flatten() for part in parts]).double().tolist()


def _train(name, address, method, trouble, pipe):
    """Train until told to stop; tell what each meeting began and ended with, and wait for leave to go on."""
    from laconic.integrations.quorum import Quorum

    class Watched(Quorum):
        before: ClassVar[dict] = {}

        def _after_step(self):
            rounds = self.link.rounds
            if rounds.due:
                share = rounds.state_dict()["sync"]["share"]
                walked = {"from": _flat(rounds.agreed().values()), "to": _flat(model.parameters()), "share": share}
                self.before = walked | {"owed": self.owed()}
            super()._after_step()

        def owed(self):
            return _flat(self.link.reducer.state_dict()["memory"]["owed"].values())

        def told(self):
            with self.agreed():
                model_now = _flat(model.parameters())
            now = {"round": self.round, "workers": self.workers, "agreed": model_now, "owed now": self.owed()}
            return self.before | now | {"loss": loss.item()}

    torch.manual_seed(int(name[-1]))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth, loss, step = torch.linspace(-1, 1, 8), torch.zeros(()), 0
    with Watched(
        model, optimizer, method, lighthouse=address, name=name, host="127.0.0.1", least=2, timeout=10, patience=30
    ) as quorum:
        pipe.send(quorum.told())
        goes_on = True
        while goes_on:
            done, x = quorum.round, torch.randn(16, 8)
            loss = (model(x) - (x @ truth)[:, None]).square().mean()
            loss.backward()
            trouble(quorum, step)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if quorum.round > done:
                pipe.send(quorum.told())
                goes_on = pipe.recv()
    pipe.send({"model": _flat(model.parameters()), "round": quorum.round})


def no_trouble(quorum, step):
    """Nothing happens."""


class Crowd:
    """Workers of one lighthouse, who go on from one meeting to the next when they are let."""

    def __init__(self):
        os.environ["RUST_LOG"] = "error"
        self.workers, self.process = {}, None
        self.light(0)

    def light(self, port, least=2):
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.pipe, self.process = launch(_lighthouse, port, least)
        self.address = self._hear(self.pipe)

    def add(self, name, trouble=no_trouble, method=METHOD):
        self.workers[name] = launch(_worker, name, self.address, method, trouble)

    def hear(self, name):
        """What a worker tells next; None: it has died."""
        told = self._hear(self.workers[name][0])
        assert told is None or "error" not in told, told
        return told

    def _hear(self, pipe):
        assert pipe.poll(40), "nobody said anything for 40 s"
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def go_on(self, *names, goes_on=True):
        """Let these go on to their next meeting, and return what each then tells."""
        for name in names:
            self.workers[name][0].send(goes_on)
        told = [self.hear(name) for name in names]
        assert len({repr(t["agreed" if goes_on else "model"]) for t in told if t}) == 1
        return told

    def close(self):
        for _, process in [*self.workers.values(), (None, self.process)]:
            process.kill()

"""Workers that come and go without a restart. Start with: torchrun --nproc-per-node 2 examples/quorum.py.

Or start torchft_lighthouse somewhere, and a worker whenever and wherever you like:
    LIGHTHOUSE=http://first-host:29510 python examples/quorum.py
"""

import os
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn
from torchft.coordination import LighthouseServer

import laconic
from laconic.integrations.quorum import Quorum


def lighthouse(ends: ExitStack) -> tuple[str, str]:
    """Return where workers meet, and what the others call this machine; under torchrun the first rank is there."""
    if "LIGHTHOUSE" in os.environ:
        return os.environ["LIGHTHOUSE"], ""
    address = [""]
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2)
        ends.callback(server.shutdown)
        address = [f"http://127.0.0.1:{server.address().rsplit(':', 1)[1]}"]
    dist.broadcast_object_list(address)
    dist.destroy_process_group()
    return address[0], "127.0.0.1"


def main(rounds: int = 30) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher = nn.Linear(64, 8)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.seed()  # every worker draws data of its own

    with ExitStack() as ends:
        address, host = lighthouse(ends)
        method = laconic.celgc(every=8, clip=0.1, send=laconic.topk(0.05))
        quorum = ends.enter_context(Quorum(model, optimizer, method, lighthouse=address, host=host, least=2))
        while quorum.round < rounds:  # one who comes later finds the number of the others
            x = torch.randn(32, 64)
            loss = nn.functional.mse_loss(model(x), teacher(x).detach())
            loss.backward()
            optimizer.step()  # at a round's end all who are here meet
            optimizer.zero_grad()
            if quorum.round % 10 == 0 and quorum.link.stats.steps % 8 == 0:
                print(f"round {quorum.round}: {quorum.workers} workers, loss {loss:.4f}")
    total = sum(float(p.detach().sum()) for p in model.parameters())
    print(f"all who were here have the model with the sum {total:.9f}")


if __name__ == "__main__":
    main()

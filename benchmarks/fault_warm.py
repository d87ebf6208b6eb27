"""Imported by the server that ranks are forked off: they find the kernels loaded."""

import torch

from laconic import kernels

# A thread does not survive a fork; one that waits for work would be missed.
torch.set_num_threads(1)
kernels.warm("cpu", torch.float32, [torch.float32])

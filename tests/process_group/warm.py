"""Imported by the server that ranks are forked off: they find the kernels loaded, else a second for each rank."""

import torch

from laconic import kernels

# A thread does not survive a fork; one that waits for work would be missed.
torch.set_num_threads(1)
for _dtype in (torch.float32, torch.float64):
    kernels.warm("cpu", _dtype, [_dtype])

"""Every Triton kernel compiles to machine code for a Hopper GPU; the compiler needs no GPU to be there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# In a process of its own: where Triton interprets it cannot compile. Launches are noted, then compiled.
SCRIPT = """
import sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

noted = []
JITFunction.__getitem__ = lambda kernel, grid: lambda *given, **named: noted.append((kernel, given, named))

from laconic.coding import Form, blocks_of
from laconic.kernels import Inflow, Places, cuda
from laconic.segments import Segments

TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
         torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.uint8: "u8"}
dtype = getattr(torch, sys.argv[1])
wide = torch.float64 if dtype == torch.float64 else torch.float32
layer = Segments.of(["a", "b"], [5000, 70001])
grad, levels = torch.zeros(layer.numel, dtype=dtype), torch.ones(2, dtype=dtype)
x = grad.to(wide)
places, flow = Places(grad=layer, x=layer, home=layer), Inflow.plain(2, like=x)
cuda.accumulate_(x, grad, flow, places, owed=x, velocity=x, proposed=x)
cuda.accumulate_(x, grad, flow, places, owed=x)
cuda.store_(x, x, places)
cuda.take_above_(grad, layer, levels, [5, 70], largest=levels)
cuda.take_above_(grad, layer, levels, [5, 70])
cuda.take_top_(grad, layer, [5, 70])
cuda.add_payloads_(x, [torch.arange(3), torch.arange(3, dtype=torch.int32)], [x[:3]] * 2, scale=0.5)
blocks, ends = blocks_of(layer, (5, 70)), torch.tensor([5, 75])
rows = cuda.coding.encode_positions(torch.arange(75), ends, blocks).repeat(2, 1)
cuda.coding.encode_positions(torch.arange(75, dtype=torch.int32), ends, blocks)
cuda.coding.decode_positions(rows, [[5, 70]] * 2, blocks)
cuda.coding.span_statistics(grad[:75], ends)
for seed in (None, 1):
    cuda.coding.quantise_line(x[:75], ends, x[:4].view(2, 2), bits=4, seed=seed)
    cuda.coding.quantise_line(x[:75].double(), ends, x[:4].view(2, 2).double(), bits=4, seed=seed)
for form in (Form(kind="line", bits=4), Form(kind="table", bits=4)):
    cuda.coding.dequantise(rows[0, :75], ends, x[: 2 * form.numbers].view(2, -1), form)
# The laboratory's cells have one type of numbers.
from laconic.lab import lstm_cells_cuda as cells
gates, states, weights = (torch.zeros(2, 3, 5, n) for n in (80, 20, 20 * 16))
for precision in ("high", "highest") if dtype == torch.float32 else ():
    torch.set_float32_matmul_precision(precision)
    recurrent = weights[:, 0].view(2, 80, 20)
    cells.forward_(gates[:, 0], states[:, 0], recurrent, states[:, 0], states[:, 1], states[:, 1])
    for later in (gates[:, 1], None):
        cells.backward_(gates[:, 0], later, recurrent, states[:, 0], states[:, 1], states[:, 0], states[:, 2])
for kernel, given, named in noted:
    values = dict(zip(kernel.arg_names, given)) | {k: v for k, v in named.items() if k in kernel.arg_names}
    options = {k: v for k, v in named.items() if k not in kernel.arg_names}
    constants = {(i,): values[p.name] for i, p in enumerate(kernel.params) if p.is_constexpr}
    signature = {}
    for p in kernel.params:
        value = values[p.name]
        if p.is_constexpr:
            signature[p.name] = "constexpr"
        elif isinstance(value, torch.Tensor):
            signature[p.name] = "*" + TYPES[value.dtype]
        else:
            signature[p.name] = "i64" if abs(value) >= 2**31 else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    print(kernel.fn.__name__, len(made.asm["cubin"]), made.asm["ptx"].count("fma.rn.f"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler comes for Linux")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(dtype):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, dtype], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    names = {name for name, *_ in kernels}
    assert {
        "_accumulate",
        "_store",
        "_mark",
        "_move",
        "_add",
        "_sample",
        "_list",
        "narrow",
        "settle",
        "pick",
        "encode",
        "count_ones",
        "decode",
        "statistics",
        "quantise",
        "dequantise",
    } | ({"_forward", "_backward"} if dtype == "float32" else set()) <= names
    assert all(int(size) > 0 for _, size, _ in kernels)
    # A product and a sum made one would round once where the definition rounds twice.
    assert [name for name, _, fused in kernels if int(fused) and name not in ("_forward", "_backward")] == []

"""The kernels against the speed of memory and against other ways to select: ``laconic bench kernels`` as a script.

python benchmarks/kernels.py --repeats 15 --json benchmarks/results/kernels_cpu.json
python benchmarks/kernels.py --device cuda --json benchmarks/results/kernels_h200.json
"""

import tyro

from laconic.lab.bench_kernels import BenchKernels

if __name__ == "__main__":
    tyro.cli(BenchKernels).run()

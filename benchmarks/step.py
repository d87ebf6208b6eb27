"""A training step with each method, against plain DDP and against no exchange: ``laconic bench step`` as a script.

python benchmarks/step.py --json benchmarks/results/step_loopback.json
"""

import tyro

from laconic.lab.bench_step import BenchStep

if __name__ == "__main__":
    tyro.cli(BenchStep).run()

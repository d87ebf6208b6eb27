"""A training step over links of several rates, with every peer: ``laconic bench network steps`` as a script. Root.

python benchmarks/network.py --json benchmarks/results/network_steps.json --page network_steps.html
"""

import tyro

from laconic.lab.network.steps import BenchSteps

if __name__ == "__main__":
    tyro.cli(BenchSteps).run()

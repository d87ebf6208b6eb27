"""How soon each method trains to a stated figure over a slow link: ``laconic bench network target`` as a script.

python benchmarks/time_to_target.py lm --data ptb --length 20 --batch 4 --stage tune
python benchmarks/time_to_target.py lm --data ptb --length 20 --batch 4 --stage race --target FIGURE
"""

import tyro

from laconic.cli.commands import MARKERS
from laconic.lab.network.target import BenchTarget

if __name__ == "__main__":
    tyro.cli(BenchTarget, config=MARKERS).run()

"""CAT against fixed amounts on logistic regression: what it costs to come so far, by three costs of a message.

    python benchmarks/cat_logreg.py --out benchmarks/results/cat_logreg.json     # 9 minutes on two cores
    python benchmarks/cat_logreg.py --table benchmarks/results/cat_logreg.json   # the table and figures again

Full gradients, step 1/L, ranks in lockstep: nothing is left to chance but how rows are shared out. A message of T
entries has the published T (ceil(log2 d) + 32) bits; its cost is counted alike for CAT and for fixed T, a rank's
own. The best fixed T is known in hindsight only: one of a dozen from 1 to d, another one for each set, cost and
target. Ratios are CAT's cost over the best fixed T's, and dense's over CAT's: dense sends all d entries as pairs,
or in the last column as values alone. Sets are found as ``laconic data`` finds them; figures need matplotlib.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from logreg_problem import Course, Goal, Numbers, Problem
from logreg_show import draw, table
from scipy import optimize, sparse

import laconic
from laconic import kernels
from laconic.costs import Affine, Cost, Packets
from laconic.descent import alpha, choose
from laconic.lab.data.home import default_home
from laconic.lab.data.store import load
from laconic.lab.machine import machine
from laconic.method import Unit
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.sizes import Size
from laconic.transports.lockstep import Lockstep
from laconic.tuners.cat import Weighed

# A header of 64 bytes; our wire has 80, and a curve of 72.
COSTS: dict[str, Cost] = {
    "bits": Affine(fixed_bits=512), "paper": Packets.cat_paper(), "udp": Packets.ethernet_udp()
}  # fmt: skip
# What is kept of what is not sent, and what is weighed against the cost; the exact rule is followed apart.
SCHEMES: dict[str, tuple[Unit, Weighed]] = {
    "published": ("none", "alpha"),
    "published, exact": ("none", "alpha"),
    "memory": ("update", "lag"),
    "memory, curvature": ("update", "curvature"),
    "memory, alpha": ("update", "alpha"),
}
# Times what the best fixed T spends: there another fixed T is given up, there CAT is, there a figure ends.
GIVE_UP, GIVE_UP_CAT, DRAWN = 1.5, 4.0, 5.0
NEAR, FAR, LESS_FAR, FAR_STEPS = 0.9, 0.99, 0.97, 600
DIVERGED, MOST_STEPS, CURVE_POINTS = 10.0, 20_000, 120
# From which step on the end can be foretold for a fixed T; for CAT, which moves T, ten times as late.
FORETOLD = {"published": 40.0, "memory": inf}
DOCS = Path(__file__).parent.parent / "docs"
DRAWN_SETS, DRAWN_SCHEMES = ("rcv1-small", "w8a"), ((1, "published"), (4, "memory"))

Move = Callable[[list[Numbers]], tuple[Numbers, int]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """CAT against fixed amounts on logistic regression."""

    out: Path = Path("results.json")
    table: Path | None = None
    """Print the table of a saved file, draw its figures and do nothing else."""
    sets: tuple[str, ...] = ("w8a", "a9a", "rcv1-small")
    jobs: int = 2
    """How many processes; no time is measured here."""


def main(options: Options) -> None:
    if options.table is not None:
        result = json.loads(options.table.read_text())
    else:
        about, began = machine("python benchmarks/cat_logreg.py", {"sets": options.sets}), time.perf_counter()
        works = [(name, ranks) for name in options.sets for ranks in (4, 1)]
        with ProcessPoolExecutor(options.jobs) as pool:
            parts = list(pool.map(measure, works))
        rows = sorted((row for part in parts for row in part["rows"]), key=lambda r: (r["data"], r["ranks"]))
        curves = [curve for part in parts for curve in part["curves"]]
        result = about | {"seconds": round(time.perf_counter() - began), "rows": rows, "curves": curves}
        options.out.write_text(json.dumps(result).replace('{"data"', '\n{"data"') + "\n")
    print(table(result["rows"]))
    for name in dict.fromkeys(curve["data"] for curve in result["curves"]):
        draw([c for c in result["curves"] if c["data"] == name], DRAWN_SCHEMES, DOCS / f"cat_{name}.svg")


def problem_of(name: str, ranks: int) -> Problem:
    data: Any = load(name, default_home())
    labels = np.where(data.train_labels > 0, 1.0, -1.0)
    signed = sparse.csr_matrix(sparse.diags(labels) @ sparse.csr_matrix(data.train, dtype=np.float64))
    rows, entries = signed.shape
    largest = float(sparse.linalg.svds(signed, k=1, return_singular_vectors=False, random_state=0)[0]) ** 2
    rate = 1 / (largest / (4 * rows) + 1 / rows)
    one = Problem(name=name, shares=((signed, signed.T.tocsr()),), rows=rows, entries=entries, rate=rate)
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 30}
    sides = {"fun": lambda w: one.look(w)[0], "jac": lambda w: one.look(w)[1][0], "x0": np.zeros(entries)}
    optimum = float(optimize.minimize(**sides, method="L-BFGS-B", options=options).fun)
    first = one.look(np.zeros(entries))[0]
    bits = Size.pairs(entries).bits(torch.arange(1, entries + 1))
    one = replace(one, prices={cost: model.of(bits).numpy() for cost, model in COSTS.items()}, optimum=optimum)
    goals = {(cost, s): first - s * (first - optimum) for s in (NEAR, FAR, LESS_FAR) for cost in COSTS}
    most = {("bits", FAR): float(one.prices["bits"][-1]) * FAR_STEPS}
    dense = walk(replace(one, goals=goals), at_fixed(one, "published", entries), most)
    too_far = FAR if dense.steps_to(goals["bits", FAR]) is None else LESS_FAR
    order = np.random.default_rng(0).permutation(rows)
    parts = [signed[order[rank::ranks]] for rank in range(ranks)]
    kept = {goal: loss for goal, loss in goals.items() if goal[1] != too_far}
    return replace(one, shares=tuple((part, part.T.tocsr()) for part in parts), goals=kept)


def walk(problem: Problem, move: Move, limits: Mapping[Goal, float], *, foretold_from: float = inf) -> Course:
    """Go on until every goal that has a limit is reached, or too dear.

    Without memory the descent of a step hardly ever grows: from some step on, what is left to do at the pace of the
    last quarter says what all will cost at least.
    """
    w, losses, counts = np.zeros(problem.entries), [], []
    spent = dict.fromkeys(COSTS, 0.0)
    while True:
        loss, gradients = problem.look(w)
        losses.append(loss)
        steps = len(counts)
        ahead = {goal: loss - problem.goals[goal] for goal in limits if loss > problem.goals[goal]}
        more = dict.fromkeys(ahead, 0.0)
        if steps >= foretold_from and steps % 10 == 0:
            fall = (losses[-1 - steps // 4] - loss) / (steps // 4)
            more = {goal: left / steps / fall if fall > 0 else inf for goal, left in ahead.items()}
        hopeful = any(spent[goal[0]] * (1 + more[goal]) <= limits[goal] for goal in ahead)
        if not hopeful or not isfinite(loss) or loss > DIVERGED or steps >= MOST_STEPS:
            return Course(losses=np.array(losses), counts=np.array(counts, dtype=np.int64))
        step, count = move(gradients)
        counts.append(count)
        for cost, prices in problem.prices.items():
            spent[cost] += float(prices[count - 1])
        w -= problem.rate * step


def by_cat(problem: Problem, scheme: str, cost: Cost) -> Move:
    if scheme == "published, exact":
        # T is chosen from the very gradient that is sent, sorted whole.
        size = Size.pairs(problem.entries)
        return by_kernel(problem, scheme, lambda g: choose(alpha(g), size, cost).count)
    memory, gain = SCHEMES[scheme]
    method = laconic.cat(
        cost, gain=gain, memory=memory, coding="published", whole_below=0, start=0.01, floor=1 / problem.entries,
        ceiling=1.0,
    )  # fmt: skip
    return over_lockstep(problem, replace(method, guard=None))


def over_lockstep(problem: Problem, method: laconic.Method) -> Move:
    """Return the move that the library makes."""
    segments, world = Segments.of(["w"], [problem.entries]), Lockstep(len(problem.shares))
    reducers = [Reducer(method, segments, port, dtype=torch.float64) for port in world.ports]

    def move(gradients: list[Numbers]) -> tuple[Numbers, int]:
        for reducer, gradient in zip(reducers, gradients, strict=True):
            reducer.begin_step(rates={"w": problem.rate})
            reducer.begin(torch.from_numpy(gradient), segments)
        for reducer in reducers:
            reducer.end_step()
        # Nothing public says what a single step has sent.
        return gradients[0], reducers[0]._state.ledger.seen.room

    return move


def by_kernel(problem: Problem, scheme: str, count_of: Callable[[torch.Tensor], int]) -> Move:
    """Return the library's move with the count that a rank's vector says: its kernel without its books, faster."""
    segments = Segments.of(["w"], [problem.entries])
    owed = [torch.zeros(problem.entries, dtype=torch.float64) for _ in problem.shares]

    def move(gradients: list[Numbers]) -> tuple[Numbers, int]:
        total, count = torch.zeros(problem.entries, dtype=torch.float64), 0
        for kept, gradient in zip(owed, gradients, strict=True):
            kept.add_(torch.from_numpy(gradient))
            count = count_of(kept)
            taken = kernels.take_top_(kept, segments, (count,))
            total.index_add_(0, taken.positions, taken.values)
            if "published" in scheme:
                kept.zero_()
        return total.numpy() / len(owed), count

    return move


def at_fixed(problem: Problem, scheme: str, count: int) -> Move:
    return by_kernel(problem, scheme, lambda _: count)


def measure(work: tuple[str, int]) -> dict[str, Any]:
    """Return the rows and curves of a set and a number of ranks."""
    torch.set_num_threads(1)
    problem, began = problem_of(*work), time.perf_counter()
    fixed = {kind: fixed_courses(problem, kind) for kind in ("published", "memory")}
    result: dict[str, Any] = {"rows": [], "curves": []}
    for scheme in SCHEMES:
        if scheme == "published, exact" and work[1] > 1:
            continue
        kind, courses = scheme.split(",")[0], fixed[scheme.split(",")[0]]
        for cost in COSTS:
            goals = [goal for goal in problem.goals if goal[0] == cost]
            limits = {goal: GIVE_UP_CAT * best_of(problem, courses, goal)["cost"] for goal in goals}
            course = walk(problem, by_cat(problem, scheme, COSTS[cost]), limits, foretold_from=10 * FORETOLD[kind])
            result["rows"] += [row_of(problem, scheme, goal, course, courses) for goal in goals]
        if problem.name in DRAWN_SETS and (work[1], scheme) in DRAWN_SCHEMES:
            result["curves"] += curves_of(problem, scheme, courses)
    print(f"{work}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return result


def fixed_courses(problem: Problem, scheme: str) -> dict[int, Course]:
    """Walk with each fixed T, from d downwards: large ones take few steps, and show what is worth beating.

    Without memory the cost has one minimum: after two in a row too dear for all goals the rest is left out.
    """
    courses: dict[int, Course] = {}
    for count in map(int, np.unique(np.geomspace(1, problem.entries, 12).round())[::-1]):
        limits = {goal: GIVE_UP * best_of(problem, courses, goal)["cost"] for goal in problem.goals}
        courses[count] = walk(problem, at_fixed(problem, scheme, count), limits, foretold_from=FORETOLD[scheme])
        last = {k: courses[k] for k in list(courses)[-2:]}
        if scheme == "published" and all(best_of(problem, last, g)["cost"] > limit for g, limit in limits.items()):
            break
    return courses


def best_of(problem: Problem, fixed: Mapping[int, Course], goal: Goal) -> dict[str, Any]:
    """Return the fixed T that reached the goal at the least cost; with none yet, infinity."""
    loss, prices = problem.goals[goal], problem.prices[goal[0]]
    spent = {count: course.spent_to(loss, prices) for count, course in fixed.items()} or {0: inf}
    best = min(spent, key=lambda count: spent[count])
    return {"T": best, "cost": spent[best], "steps": fixed[best].steps_to(loss) if best else None}


def row_of(
    problem: Problem, scheme: str, goal: Goal, course: Course, fixed: Mapping[int, Course]
) -> dict[str, Any]:
    (cost, share), loss, prices = goal, problem.goals[goal], problem.prices[goal[0]]
    best, dense_steps = best_of(problem, fixed, goal), fixed[problem.entries].steps_to(loss) or 0
    steps, spent = course.steps_to(loss), course.spent_to(loss, prices)
    sent, first = course.counts[:steps], float(course.losses[0])
    values = float(COSTS[cost].of(torch.tensor([32.0 * problem.entries])))
    row = {
        "data": problem.name, "ranks": len(problem.shares), "scheme": scheme, "cost": cost,
        "unit": COSTS[cost].unit, "target": share, "target_loss": loss, "cat_cost": spent, "steps": steps,
        "T": [int(sent.min()), round(float(sent.mean()), 1), int(sent.max())], "best_fixed": best,
        "ratio": spent / best["cost"], "dense_steps": dense_steps,
        "dense_ratio": float(prices[-1]) * dense_steps / spent, "dense_values_ratio": values * dense_steps / spent,
    }  # fmt: skip
    if steps is None:
        came = (first - float(course.losses.min())) / (first - problem.optimum)
        row |= {"cat_cost": None, "ratio": None, "dense_ratio": None, "dense_values_ratio": None}
        row |= {"gave_up_after_steps": len(sent), "came": came, "diverged": bool(course.losses[-1] > first)}
    return row


def curves_of(problem: Problem, scheme: str, fixed: Mapping[int, Course]) -> list[dict[str, Any]]:
    """Return the loss over bits of CAT, of the best fixed T, an eighth and eight times it, and of all entries."""
    goal = ("bits", max(share for _, share in problem.goals))
    best, prices, drawn = best_of(problem, fixed, goal), problem.prices["bits"], []
    moves = {"CAT": by_cat(problem, scheme, COSTS["bits"])}
    for count in (max(1, best["T"] // 8), best["T"], 8 * best["T"]):
        if count < problem.entries:
            moves[f"T = {count:,}" + " (best)" * (count == best["T"])] = at_fixed(problem, scheme, count)
    moves["dense"] = at_fixed(problem, scheme, problem.entries)
    for label, move in moves.items():
        limit = inf if label == "dense" else DRAWN * best["cost"]
        course = walk(problem, move, {goal: limit})
        at = np.unique(np.geomspace(1, len(course.counts), CURVE_POINTS).astype(int))
        left = (course.losses - problem.optimum) / (course.losses[0] - problem.optimum)
        drawn.append({
            "data": problem.name, "ranks": len(problem.shares), "scheme": scheme, "label": label,
            "bits": [int(bits) for bits in np.cumsum(prices[course.counts - 1])[at - 1]],
            "left": [float(f"{share:.4g}") for share in left[at]],
        })  # fmt: skip
    return drawn


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

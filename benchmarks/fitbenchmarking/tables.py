"""Tables of what minimizers made of problems: which found the least cost, and in what time."""

from typing import Any

import numpy as np

SAME = 1e-4
"""A cost within this share of the least that any minimizer found counts as the same minimum."""

ZERO, SOLVED = 1e-16, 1e-14
"""Where the least cost is below the first, equations are solved but for rounding: all costs below the second count."""


HEADINGS = (
    "minimizer",
    "problems",
    "least cost found",
    "converged there",
    "converged elsewhere",
    "median time / fastest",
    "within 2x",
    "median evaluations",
)
"""Times and evaluations are of the problems where the least cost was found, the fastest among all that found it."""


def table(records: list[dict[str, Any]]) -> str:
    """A line per minimizer over all problems of these records."""
    # Where no minimizer has a finite cost, the problem cannot be evaluated.
    problems = sorted({record["problem"] for record in records if np.isfinite(record["cost"])})
    of = {(record["problem"], record["minimizer"]): record for record in records}
    minimizers = list(dict.fromkeys(record["minimizer"] for record in records))
    least = {p: min(of[p, m]["cost"] for m in minimizers if (p, m) in of) for p in problems}
    # The fastest among those that found the minimum.
    fastest = {
        p: min(
            (of[p, m]["seconds"] for m in minimizers if (p, m) in of and _is_least(of[p, m], least[p])), default=np.nan
        )
        for p in problems
    }
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for minimizer in minimizers:
        own = [of[p, minimizer] for p in problems if (p, minimizer) in of]
        is_good = [_is_least(record, least[record["problem"]]) for record in own]
        good = [record for record, found in zip(own, is_good, strict=True) if found]
        wrong = sum(record["flag"] == 0 and not found for record, found in zip(own, is_good, strict=True))
        ratios = [record["seconds"] / fastest[record["problem"]] for record in good]
        counts = [record["evaluations"] for record in good if record["evaluations"] is not None]
        cells = [len(own), len(good), sum(record["flag"] == 0 for record in good), wrong]
        cells += [f"{np.median(ratios):.1f}" if ratios else "", sum(ratio <= 2 for ratio in ratios)]
        cells += [f"{np.median(counts):.0f}" if counts else ""]
        lines.append(f"| {minimizer} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _is_least(record: dict[str, Any], least: float) -> bool:
    return record["cost"] <= (SOLVED if least < ZERO else least * (1 + SAME))


ACCURACIES = (1e-8, 1e-4, 1e-2, 1.0)
TIMES = (1, 2, 5, 10, 100)


def profile(records: list[dict[str, Any]]) -> str:
    """Dolan and Moré's profiles in numbers: the share of problems, in percent, in which a minimizer's cost is within a
    share of the least, and in which it has found the least within a multiple of the least time."""
    problems = sorted({record["problem"] for record in records if np.isfinite(record["cost"])})
    of = {(record["problem"], record["minimizer"]): record for record in records}
    minimizers = list(dict.fromkeys(record["minimizer"] for record in records))
    least = {p: min(of[p, m]["cost"] for m in minimizers if (p, m) in of) for p in problems}
    found = {key: _is_least(of[key], least[key[0]]) for key in of if key[0] in least}
    fastest = {
        p: min((of[p, m]["seconds"] for m in minimizers if found.get((p, m), False)), default=np.nan) for p in problems
    }
    headings = ["minimizer", *(f"cost ≤ {1 + a:.9g}" for a in ACCURACIES), *(f"time ≤ {t}" for t in TIMES)]
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for minimizer in minimizers:
        own = [p for p in problems if (p, minimizer) in of]
        costs = [
            sum(of[p, minimizer]["cost"] <= (SOLVED if least[p] < ZERO else least[p] * (1 + a)) for p in own)
            for a in ACCURACIES
        ]
        times = [sum(found[p, minimizer] and of[p, minimizer]["seconds"] <= t * fastest[p] for p in own) for t in TIMES]
        cells = [f"{100 * count / max(len(own), 1):.0f}" for count in (*costs, *times)]
        lines.append(f"| {minimizer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

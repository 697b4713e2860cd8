"""Where the products of a term's blocks go in block-sparse normal equations."""

from functools import partial

import numpy as np

from mslsq.kernels import run_on
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.normal_products import NormalPlan, PairPlan, VariablePlan
from mslsq.linear.operator_plan import on_device
from mslsq.linearize.free_parts import Lanes, Run


def normal_plan(joint: list[Lanes], structure: BlockStructure) -> NormalPlan:
    """The plan of a term, on the device of the structure, from the blocks of each of its variables.

    Consecutive components that move are one product; what is held in between divides it.
    """
    first = np.cumsum([0, *(one.tangent for one in joint)]).tolist()
    kept = partial(on_device, device=structure.device)
    pairs: list[PairPlan] = []
    variables: list[VariablePlan] = []

    def add_pairs(p: int, q: int, lanes: np.ndarray, rows: list[Run], columns: list[Run]) -> None:
        i, j = joint[p].numbers, joint[q].numbers
        lanes = lanes[i[lanes] >= j[lanes]]
        if not len(lanes):
            return
        offsets, _ = structure.offset_of(i[lanes], j[lanes])
        stored, width = kept(lanes), sum(run.width for run in columns)
        # A product fills consecutive numbers: whole rows of the block, or a part of one row.
        rows = rows if len(columns) == 1 else [part for run in rows for part in run.single]
        for row in rows:
            for column in columns:
                target = kept(offsets + row.place * width + column.place)
                own = first[p] + row.first, first[q] + column.first
                pairs.append(PairPlan(*own, row.width, column.width, stored, target))

    for p, one in enumerate(joint):
        for q, other in enumerate(joint):
            for of_one, rows in one.kinds:
                for of_other, columns in other.kinds:
                    add_pairs(p, q, _common(of_one, of_other), rows, columns)
        for lanes, runs in one.kinds:
            starts = structure.starts[one.numbers[lanes]]
            for run in runs:
                variables.append(VariablePlan(first[p] + run.first, run.width, kept(lanes), kept(starts + run.place)))
    plan = NormalPlan(structure.num_values, structure.num_unknowns, tuple(pairs), tuple(variables))
    return plan.in_one_piece() if run_on(structure.device) else plan


def _common(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """What is in both of two ascending arrays, each without repetition."""
    return one if np.array_equal(one, other) else np.intersect1d(one, other, assume_unique=True)

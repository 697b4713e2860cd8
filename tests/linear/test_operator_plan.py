"""Plans of operators: packed and put together again, and all of one device."""

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mslsq.linear import Schur
from mslsq.linear.block_products import symmetric_product_of
from mslsq.linear.block_structure import BlockStructure, analyze
from mslsq.linear.iterative.block_rows import TermBlocks, block_rows
from mslsq.linear.iterative.implicit_schur import ImplicitSchurPlan
from mslsq.linear.iterative.linear_operators import FormedPlan
from mslsq.linear.operator_plan import OperatorPlan
from mslsq.linearize.free_parts import lanes_of
from mslsq.linearize.normal_plan import normal_plan

META = torch.device("meta")
KINDS = {"camera": np.array([0, 1]), "point": np.array([2, 3, 4])}


def structure_on(device: torch.device) -> BlockStructure:
    """Two cameras of 3 that see three points of 2, the first points of two cameras."""
    return analyze(np.array([3, 3, 2, 2, 2]), np.array([2, 2, 3, 3, 4]), np.array([0, 1, 0, 1, 1]), device=device)


def plans_on(device: torch.device) -> dict[str, OperatorPlan]:
    def free(tangent: int) -> np.ndarray:
        return np.ones(tangent, dtype=bool)

    structure, lanes = structure_on(device), np.array([0, 1, 1])
    seen = np.array([2, 3, 4])
    term = TermBlocks(2, np.arange(15).reshape(5, 3), ((0, 3, lanes), (3, 2, seen)), False)
    rows = block_rows(structure.block_sizes, (term, term._replace(shared=True)), device)
    eliminated = np.array([False, False, True, True, True])
    return {
        "product": symmetric_product_of(structure),
        "formed": FormedPlan.of(structure),
        "implicit": ImplicitSchurPlan.of(structure, eliminated),
        "jacobian": rows.jacobian,
        "hessian": rows.hessian,
        "schur": Schur().bound(structure, KINDS).elimination.tables,
        "normal": normal_plan([lanes_of(lanes, free(3)), lanes_of(seen, free(2))], structure),
    }


def leaves(plan: Any) -> Iterator[Any]:
    """All tensors and numbers of a plan, by its fields."""
    if isinstance(plan, OperatorPlan):
        for field in fields(plan):  # pyright: ignore[reportArgumentType]
            yield from leaves(getattr(plan, field.name))
    elif isinstance(plan, tuple):
        yield len(plan)
        for part in plan:
            yield from leaves(part)
    else:
        yield plan


@pytest.mark.parametrize("name", plans_on(torch.device("cpu")))
def test_what_is_unpacked_is_what_was_packed(name):
    plan = plans_on(torch.device("cpu"))[name]
    tensors, numbers = plan.packed
    copies = [tensor.clone() for tensor in tensors]
    again = type(plan).unpacked(copies, list(numbers))
    assert type(again) is type(plan) and again is not plan
    before, after = list(leaves(plan)), list(leaves(again))
    assert len(before) == len(after) > 3
    given = iter(copies)
    for one, other in zip(before, after, strict=True):
        assert other is next(given) if isinstance(one, Tensor) else one == other
    assert next(given, None) is None


def test_a_plan_that_still_lives_is_found_again_and_no_other():
    plan = plans_on(torch.device("cpu"))["normal"]
    tensors, numbers = plan.packed
    assert type(plan).unpacked(list(tensors), list(numbers)) is plan
    for other in range(len(tensors)):
        changed = [x.clone() if k == other else x for k, x in enumerate(tensors)]
        again = type(plan).unpacked(changed, numbers)
        assert again is not plan and any(x is changed[other] for x in leaves(again))
    larger = [numbers[0] + 1, *numbers[1:]]
    assert next(leaves(type(plan).unpacked(tensors, larger))) == numbers[0] + 1


def test_a_plan_that_was_packed_is_not_kept_alive():
    plan = plans_on(torch.device("cpu"))["normal"]
    tensors, numbers = plan.packed
    before, gone = list(leaves(plan)), weakref.ref(plan)
    kind = type(plan)
    del plan
    gc.collect()
    assert gone() is None
    assert all(
        one is other or one == other for one, other in zip(before, leaves(kind.unpacked(tensors, numbers)), strict=True)
    )


@pytest.mark.parametrize("name", plans_on(torch.device("cpu")))
def test_a_plan_lies_on_the_device_of_its_structure(name):
    plan = plans_on(META)[name]
    assert plan.packed.tensors
    assert {tensor.device for tensor in plan.packed.tensors} == {META}


def read_back(plan: OperatorPlan) -> tuple[list[list[int]], list[int]]:
    memory, places, numbers = plan.arrays
    return [memory[begin : begin + count].tolist() for begin, count in places.tolist()], numbers.tolist()


@pytest.mark.parametrize("name", plans_on(torch.device("cpu")))
def test_kernels_find_every_tensor_of_a_plan_and_of_its_copies(name):
    plan = plans_on(torch.device("cpu"))[name]
    if any(tensor.dtype != torch.int64 for tensor in plan.packed.tensors):
        pytest.skip("no kernel reads this plan as a whole")
    expected = [tensor.flatten().tolist() for tensor in plan.packed.tensors], list(plan.packed.numbers)
    one = plan.in_one_piece()
    assert read_back(plan) == read_back(one) == expected
    assert len({tensor.untyped_storage().data_ptr() for tensor in one.packed.tensors}) <= 1
    assert not one.packed.tensors or one.arrays.memory.data_ptr() == one.packed.tensors[0].untyped_storage().data_ptr()
    copied, pickled = copy.deepcopy(one), pickle.loads(pickle.dumps(one))
    for tensor in one.packed.tensors:
        tensor.zero_()  # what is copied has memory of its own
    assert read_back(copied) == read_back(pickled) == expected


def test_a_structure_on_another_device_makes_no_use_of_kernels():
    structure = structure_on(META)
    assert structure.diagonal_index.device == structure.entries.place.device == META
    plan = symmetric_product_of(structure)
    assert plan.entries and not plan.tables
    schur = Schur(reduced="sparse").bound(structure, KINDS).elimination
    assert schur.chosen == "dense" and not schur.by_kernels

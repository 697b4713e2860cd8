"""What holds of the programs of whole solves on a processor holds of their CUDA C, run by the processor."""

import pytest

import mslsq
from tests.native.functions import NEEDS_COMPILER
from tests.solvers.test_whole_solves import (
    SOLVERS,
    STEPS,
    compare_hard_fits,
    test_a_jacobian_of_the_users_is_used,
    test_a_singular_problem_is_told_from_its_neighbours,
    test_an_image_of_each_problem_or_of_all_is_looked_up,
    test_bits_of_a_bounded_problem_do_not_depend_on_its_batch,
    test_bounds_are_met_in_the_same_steps,
    test_every_loss_takes_the_same_steps,
    test_every_manifold_takes_the_same_steps,
    test_few_steps,
    test_in_float32_costs_are_the_same_to_rounding,
    test_parts_that_nothing_couples_take_the_same_steps,
    test_problems_that_are_not_finite_or_singular_stop_alone,
    test_rows_in_any_order_with_constants_and_odd_ones_among_them,
    test_several_costs_variables_weights_and_fixed_blocks_take_the_same_steps,
    test_starts_of_their_own_and_strided_data,
    test_the_gradient_through_a_native_solve_is_that_of_python,
    test_transforms_around_a_solve_run_natively,
    test_whole_numbers_and_masks_of_each_problem_are_read,
    watch,
)

pytestmark = [NEEDS_COMPILER, pytest.mark.slow, pytest.mark.usefixtures("launches")]
__all__ = [
    "test_a_jacobian_of_the_users_is_used",
    "test_a_singular_problem_is_told_from_its_neighbours",
    "test_an_image_of_each_problem_or_of_all_is_looked_up",
    "test_bits_of_a_bounded_problem_do_not_depend_on_its_batch",
    "test_bounds_are_met_in_the_same_steps",
    "test_every_loss_takes_the_same_steps",
    "test_every_manifold_takes_the_same_steps",
    "test_few_steps",
    "test_in_float32_costs_are_the_same_to_rounding",
    "test_parts_that_nothing_couples_take_the_same_steps",
    "test_problems_that_are_not_finite_or_singular_stop_alone",
    "test_rows_in_any_order_with_constants_and_odd_ones_among_them",
    "test_several_costs_variables_weights_and_fixed_blocks_take_the_same_steps",
    "test_starts_of_their_own_and_strided_data",
    "test_the_gradient_through_a_native_solve_is_that_of_python",
    "test_transforms_around_a_solve_run_natively",
    "test_whole_numbers_and_masks_of_each_problem_are_read",
    "watch",
]


@pytest.fixture(autouse=True)
def straight(monkeypatch):
    """A GPU goes on with straight steps where a problem creeps."""
    monkeypatch.setitem(STEPS, mslsq.LevenbergMarquardt, {"acceleration": None})


@pytest.mark.parametrize("kind", SOLVERS)
def test_hard_fits_take_the_same_steps_but_for_one_in_a_hundred(watch, kind):
    """The C library rounds otherwise than the vectors of a processor: of 512 statuses ten differ instead of eight."""
    compare_hard_fits(watch, kind, 12)

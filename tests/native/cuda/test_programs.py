"""What holds of the programs of blocks on a processor holds of their CUDA C, run by the processor."""

from typing import Any

import pytest

from mslsq.linearize import programs
from mslsq.native.cuda.programs import CudaMaking
from tests.linearize.test_programs import (
    attempts,
    blocks_only,
    test_a_batch_of_graphs_and_graphs_in_pieces_take_the_steps_of_pytorch,
    test_a_place_outside_of_an_image_is_not_a_number,
    test_a_program_does_not_outlive_what_its_residual_reads,
    test_a_program_serves_recorded_and_eager_steps,
    test_a_program_that_differs_from_pytorch_is_not_used,
    test_an_image_is_looked_up_between_its_pixels,
    test_derivatives_of_a_solution_do_not_change,
    test_given_jacobians_are_recorded_and_not_differentiated,
    test_jacobians_on_manifolds_are_those_of_forward_mode,
    test_lanes_neither_know_their_place_nor_their_neighbours,
)
from tests.native.cuda.host import Host, host_driver
from tests.native.functions import NEEDS_COMPILER

pytestmark = [NEEDS_COMPILER, pytest.mark.slow]
__all__ = [
    "attempts",
    "blocks_only",
    "test_a_batch_of_graphs_and_graphs_in_pieces_take_the_steps_of_pytorch",
    "test_a_place_outside_of_an_image_is_not_a_number",
    "test_a_program_does_not_outlive_what_its_residual_reads",
    "test_a_program_serves_recorded_and_eager_steps",
    "test_a_program_that_differs_from_pytorch_is_not_used",
    "test_an_image_is_looked_up_between_its_pixels",
    "test_derivatives_of_a_solution_do_not_change",
    "test_given_jacobians_are_recorded_and_not_differentiated",
    "test_jacobians_on_manifolds_are_those_of_forward_mode",
    "test_lanes_neither_know_their_place_nor_their_neighbours",
]


@pytest.fixture(autouse=True)
def as_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Programs are CUDA C; every context that was entered is left."""
    monkeypatch.setattr(programs, "making", lambda written, device: CudaMaking(written, Host()))
    yield
    assert host_driver()._library.contexts_left() == 0

"""One problem and one batch on several processes: the solution of one process, or the same words on all ranks."""

import re
from typing import Any

import pytest

from mslsq import Status

SAME = 1e-9
"""What the order of a sum may change in a solution."""
FAST = (
    *("dense", "robust", "graphs", "users_own", "parts", "fewer_blocks_than_ranks", "twice", "exchanged"),
    *("gradients", "gradients_of_parts", "different_losses", "batches", "gradients_of_batches"),
    *("refusals", "unequal_ranks", "failures", "a_rank_that_changes_its_mind"),
)


@pytest.fixture(scope="module")
def both(run_ranks) -> list[dict[str, Any]]:
    """What two ranks found in all fast scenarios, one after the other in the same processes."""
    ended = run_ranks("scenarios.py", *FAST)
    for rank in ended:
        assert rank.code == 0, rank.output
    return [rank.found for rank in ended]


def check_same(found: dict[str, Any], steps: int = 0) -> None:
    assert found["difference"] <= SAME and found["cost"] <= SAME
    assert found["status"][0] == found["status"][1]
    assert abs(found["steps"][0] - found["steps"][1]) <= steps


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["LevenbergMarquardt", "GaussNewton", "Dogleg"])
def test_every_method_finds_the_solution_of_one_process(both, method):
    for rank in both:
        check_same(rank["dense"][method])


def test_robust_losses_act_on_each_rank(both):
    for rank in both:
        check_same(rank["robust"])


@pytest.mark.parametrize("linear", ["auto", "Cholesky", "SparseCholesky", "stored", "matrix-free"])
def test_every_linear_solver_finds_the_pose_graph_of_one_process(both, linear):
    for rank in both:
        check_same(rank["graphs"][linear])


def test_a_residual_of_the_users_own_is_differentiated_on_each_rank(both):
    for rank in both:
        check_same(rank["users_own"])


def test_ranks_may_state_their_own_parts_and_one_of_them_a_cost_alone(both):
    for rank in both:
        check_same(rank["parts"])


def test_a_rank_may_have_no_blocks(both):
    for rank in both:
        check_same(rank["fewer_blocks_than_ranks"]["dense"])
        check_same(rank["fewer_blocks_than_ranks"]["matrix-free"], steps=1)


def test_plans_are_kept_for_the_next_call(both):
    for rank in both:
        for found in rank["twice"]:
            check_same(found)


def test_a_dense_step_makes_three_collectives_and_one_more_where_a_callback_may_end_it(both):
    """The sum, which is announced, and what the first rank has come to."""
    for rank in both:
        assert rank["exchanged"]["plain"][0] == 3
        assert rank["exchanged"]["watched"][0] == 4
        unknowns = 3
        doubles = 6 + (1 + unknowns + unknowns**2) + (2 * unknowns + 9)  # as benchmarks/rank_simulation.py has it
        assert rank["exchanged"]["plain"][1] == 8 * doubles


@pytest.mark.parametrize("linear", ["dense", "matrix-free"])
def test_gradients_are_those_of_one_process_and_equal_on_all_ranks(both, linear):
    for rank in both:
        assert rank["gradients"][linear]["difference"] <= SAME
        assert rank["gradients"][linear]["between ranks"] == 0.0


def test_gradients_of_a_ranks_own_data_stay_there_and_those_of_shared_weights_are_summed(both):
    for rank in both:
        assert rank["gradients_of_parts"]["own"] <= SAME
        assert rank["gradients_of_parts"]["shared"] <= SAME


def test_losses_that_differ_between_ranks_are_refused(both):
    for rank in both:
        kind, words = rank["different_losses"]
        assert kind == "RanksDifferError" and "the same loss" in words


def test_a_batch_over_ranks_is_the_batch_of_one_process(both):
    for rank, found in enumerate(both):
        for figures in found["batches"].values():
            assert figures["gathered"] <= SAME and figures["own"] <= SAME
            assert figures["status"] and figures["history"]
        assert found["batches"]["1"]["count"] == rank  # the only problem is the last rank's
        assert all(difference <= SAME for difference in found["gradients_of_batches"].values())


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("bounds", "ProblemError", "has bounds"),
        ("constraints", "ProblemError", "constraints are met on one rank"),
        ("rejection", "TypeError", "GraduatedNonConvexity"),
        ("QR", "SolverOptionError", "all rows of J on one rank"),
        ("compile", "SolverOptionError", "compile=True"),
        ("early_stop", "SolverOptionError", "all ranks stop together"),
        ("checkpoint", "SolverOptionError", "solution.value"),
        ("acceleration", "SolverOptionError", "acceleration"),
        ("adjoint", "AdjointOptionError", "Implicit() or Detached()"),
        ("transform", "DerivativeOrderError", "plain backward()"),
        ("the same blocks", "RanksDifferError", "holds='whole'"),
        ("other blocks", "RanksDifferError", "holds='part'"),
        ("no batch", "ProblemError", "in_dims"),
    ],
)
def test_what_cannot_be_solved_over_ranks_is_refused_in_a_sentence(both, what, kind, words):
    for rank in both:
        assert rank["refusals"][what][0] == kind
        assert words in rank["refusals"][what][1]
        assert rank["refusals"]["after all that"] <= SAME


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("variables", "Rank 1: [('q'"),
        ("start", "the start must be the same"),
        ("options", "max_steps=5"),
        ("method", "Dogleg"),
        ("held", "held fixed"),
        ("batch", "3 problems on one rank and 4 on another"),
    ],
)
def test_ranks_that_differ_all_say_what_differs_and_can_go_on(both, what, words):
    for rank in both:
        kind, said = rank["unequal_ranks"][what]
        assert kind == "RanksDifferError" and words in said
        assert rank["unequal_ranks"]["after all that"] <= SAME


def test_nan_on_one_rank_stops_all_with_the_same_status(both):
    for rank in both:
        assert rank["failures"]["nan"] == [Status.NON_FINITE, 0]


def test_an_exception_of_one_rank_ends_all(both):
    first, second = (rank["failures"] for rank in both)
    assert second["raises"] == ["ValueError", "mine"]
    assert second["missing"][0] == "ProblemError"
    for what in ("raises", "missing"):
        assert first[what][0] == "RankFailedError" and "another rank has failed" in first[what][1]


def test_an_interrupt_of_one_rank_ends_all_at_the_same_step(both):
    first, second = (rank["failures"] for rank in both)
    for rank in (first, second):
        assert rank["interrupted"][:2] == [Status.INTERRUPTED, 2]
        assert rank["signalled"] == [Status.INTERRUPTED, 2]
        assert rank["raised"][0] == "SolveInterrupted"
        assert rank["quietly"] == [Status.INTERRUPTED, 2]  # without a callback nothing is exchanged between steps
        assert rank["early"][0] == "InterruptedElsewhere" and "Ctrl-C on one of the 2 ranks" in rank["early"][1]
    assert first["interrupted"] == second["interrupted"]


def test_a_callback_and_a_clock_of_one_rank_stop_all(both):
    for rank in both:
        assert rank["failures"]["stopped"] == [Status.MAX_STEPS, 2]
        assert rank["failures"]["late"][0] == Status.TIME_BUDGET
        assert rank["failures"]["after all that"] <= SAME


def test_a_graph_that_goes_stale_on_one_rank_is_made_again_on_all(both):
    for rank in both:
        assert rank["a_rank_that_changes_its_mind"]["again"] <= SAME
        assert rank["a_rank_that_changes_its_mind"]["changed"] <= SAME
        assert "linearize" in rank["a_rank_that_changes_its_mind"]["graphs"]


# ---- processes of their own


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_others_within_the_time_out(run_ranks):
    first, _ = run_ranks("scenarios.py", "a_rank_that_hangs")
    kind, words, _ = first.found["a_rank_that_hangs"]
    assert kind == "RankLostError" and "has not answered" in words
    (waited,) = re.findall(r"([\d.]+) s, time-out 4 s", words)
    assert 3.9 <= float(waited) < 8  # it asks once a second, on a busy machine later


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others_at_once(run_ranks):
    first, second = run_ranks("scenarios.py", "a_rank_that_dies")
    assert second.code < 0  # killed
    kind, words, _ = first.found["a_rank_that_dies"]
    assert kind == "RankLostError" and "is gone" in words
    (waited,) = re.findall(r"([\d.]+) s, time-out 4 s", words)
    assert float(waited) < 3


@pytest.mark.slow
def test_a_wrong_world_size_ends_in_a_sentence(run_ranks):
    for rank in run_ranks("joining.py", world=3):
        assert rank.found["joined"][0] == "RankLostError"
        assert "3 processes (WORLD_SIZE)" in rank.found["joined"][1]


@pytest.mark.slow
def test_four_ranks_find_the_solution_of_one_process(run_ranks):
    names = ("dense", "robust", "graphs", "parts", "fewer_blocks_than_ranks", "gradients")
    names += ("batches", "gradients_of_batches", "a_rank_that_changes_its_mind")
    for number, rank in enumerate(run_ranks("scenarios.py", *names, count=4)):
        assert rank.code == 0, rank.output
        alone = rank.found["parts"], rank.found["robust"]
        for found in (*rank.found["dense"].values(), *rank.found["graphs"].values(), *alone):
            check_same(found, steps=1)
        assert all(figures["difference"] <= SAME for figures in rank.found["gradients"].values())
        assert rank.found["batches"]["1"]["count"] == (number == 3)
        assert all(figures["gathered"] <= SAME for figures in rank.found["batches"].values())
        assert all(difference <= SAME for difference in rank.found["gradients_of_batches"].values())
        assert rank.found["a_rank_that_changes_its_mind"]["changed"] <= SAME


@pytest.mark.slow
def test_of_four_ranks_three_end_when_one_dies(run_ranks):
    ended = run_ranks("scenarios.py", "a_rank_that_dies", count=4)
    assert ended[1].code < 0  # killed
    for rank in (ended[0], *ended[2:]):
        kind, words, _ = rank.found["a_rank_that_dies"]
        assert kind == "RankLostError" and ("is gone" in words or "has not answered" in words)


@pytest.mark.slow
def test_larger_problems_and_real_data(run_ranks):
    for rank in run_ranks("scenarios.py", "large", "bundle"):
        assert rank.code == 0, rank.output
        for found in rank.found["large"].values():
            check_same(found, steps=1)
        for found in (rank.found["bundle"] or {}).values():
            check_same(found, steps=1)


@pytest.mark.slow
def test_ddp_and_fsdp_around_the_layer_have_the_gradients_of_one_process(run_ranks):
    for rank in run_ranks("scenarios.py", "under_ddp", "under_fsdp"):
        assert rank.code == 0, rank.output
        assert rank.found["under_ddp"]["difference"] <= SAME
        assert rank.found["under_fsdp"]["difference"] <= SAME
        kind, words = rank.found["under_ddp"]["inside"]
        assert kind == "ProblemError" and "averages gradients" in words

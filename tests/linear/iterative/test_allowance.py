"""How many iterations steps make that may not look whether they are solved."""

import math

import torch

from mslsq.linear.iterative.allowance import EXTRA, FIRST, GROWTH, LEAST, MARGIN, Allowance, Spent

HERE = torch.tensor([True])
"""The only entry counts."""


def falling(count: int, rate: float = 0.5, batch: int = 1) -> torch.Tensor:
    """Residuals of a solve that converges linearly."""
    return (rate ** torch.arange(1, count + 1, dtype=torch.float64)).expand(batch, -1)


def spent(residuals: torch.Tensor, iterations: int | None = None) -> Spent:
    made = residuals.shape[1] if iterations is None else iterations
    return Spent(residuals, torch.full((len(residuals),), made))


def accuracy(*wanted: float) -> torch.Tensor:
    return torch.tensor(wanted, dtype=torch.float64)


def test_a_solve_that_was_enough_foresees_the_next():
    allowance = Allowance()
    allowance.spend(spent(falling(FIRST)), accuracy(0.1), 0.1)
    allowed = allowance.next(accuracy(1e-3), HERE)
    assert allowed is not None and int(allowed) == math.ceil(MARGIN * 10) + EXTRA  # 2⁻¹⁰ is the first below


def test_what_is_asked_for_is_never_less_accurate_than_the_solver_allows():
    allowance = Allowance()
    allowance.spend(spent(falling(FIRST)), accuracy(1e-3), 1e-3)
    allowed = allowance.next(accuracy(0.1), HERE)
    assert allowed is not None and int(allowed) == math.ceil(MARGIN * 10) + EXTRA


def test_more_is_allowed_until_the_accuracy_is_come_to():
    allowance, counts = Allowance(), []
    for _ in range(4):
        counts.append(allowance.iterations)
        allowance.spend(spent(falling(allowance.iterations, 0.95)), accuracy(0.1), 0.1)
        allowance.iterations = int(allowance.next(accuracy(0.1), HERE))  # type: ignore[arg-type]
    assert counts == [FIRST, 24, 36, 54] and math.ceil(GROWTH * FIRST) == 24
    assert allowance.iterations == 54 + EXTRA  # 0.95⁴⁵ is the first below


def test_an_accurate_solve_is_remembered_behind_a_coarse_one():
    allowance = Allowance()
    for made, wanted in ((30, 1e-6), (10, 0.1)):
        allowance.spend(spent(falling(made)), accuracy(wanted), 0.1)
        allowed = allowance.next(accuracy(1e-6), HERE)
    assert allowed is not None and int(allowed) == math.ceil(MARGIN * 20) + EXTRA


def test_entries_that_have_stopped_or_are_stuck_ask_for_nothing():
    residuals = torch.cat((falling(20), torch.ones(2, 20, dtype=torch.float64)))
    iterations = torch.tensor([20, 20, 3])  # the last met a matrix that is not definite
    running = torch.tensor([True, False, True])
    allowance = Allowance()
    allowance.spend(Spent(residuals, iterations), accuracy(0.1, 0.1, 0.1), 0.1)
    allowed = allowance.next(accuracy(0.1, 0.1, 0.1), running)
    assert allowed is not None and int(allowed) == LEAST


def test_of_two_solves_in_a_step_the_slower_counts():
    allowance = Allowance()
    for rate in (0.1, 0.9):
        allowance.spend(spent(falling(FIRST, rate)), accuracy(0.1), 0.1)
    assert int(allowance.next(accuracy(0.1), HERE)) == GROWTH * FIRST  # type: ignore[arg-type]


def test_without_a_solve_nothing_is_asked_beside_the_loops_own_question():
    allowance = Allowance()
    assert allowance.read_with(torch.tensor(-3), accuracy(0.1), HERE) == -3
    assert allowance.iterations == FIRST

"""What is said in a process that was not started with others."""

import pytest
import torch

import mslsq
from mslsq import distributed

PROBLEM = mslsq.Problem(mslsq.Prior(mslsq.Variable("p", mslsq.Euclidean(1)), target=torch.zeros(1, 1)))


def test_a_solve_without_a_process_group_says_how_to_start():
    with pytest.raises(distributed.RanksError, match="torchrun"):
        distributed.solve(PROBLEM, {"p": torch.ones(1)})
    with pytest.raises(distributed.RanksError, match="torchrun"):
        distributed.solve_batch(PROBLEM, {"p": torch.ones(2, 1)}, in_dims=0)


def test_joining_without_torchrun_says_what_is_missing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(distributed.RanksError, match="WORLD_SIZE"):
        distributed.initialize()


@pytest.mark.parametrize("options", [{"holds": "half"}, {"timeout": 0}, {"timeout": "long"}])
def test_options_are_checked(options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        distributed.solve(PROBLEM, {"p": torch.ones(1)}, **options)

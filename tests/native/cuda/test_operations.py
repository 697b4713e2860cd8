"""Every operation as CUDA C against PyTorch, at ordinary and special numbers, run by the processor."""

import functools

import pytest
import torch

from mslsq.native.cuda.programs import CudaMaking
from mslsq.tracing.capture import capture
from tests.native.cuda.host import Host
from tests.native.functions import NEEDS_COMPILER, native
from tests.native.test_lines_and_matrices import LINES, MATRICES, points
from tests.native.test_operations import INF, NAN, ONE, ORDINARY, SPECIAL, TWO, assert_same, of_one, of_two

pytestmark = NEEDS_COMPILER
making = functools.partial(CudaMaking, tools=Host())


@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.slow), torch.float32])
def test_operations_of_one_number_are_those_of_pytorch(dtype):
    x = torch.tensor([ORDINARY + SPECIAL], dtype=torch.float64).to(dtype)
    assert_same({name: of_one(f) for name, f in ONE.items()}, x, making)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_operations_of_two_numbers_are_those_of_pytorch(dtype):
    numbers = torch.tensor([0.3, -1.7, 2.0, -2.0, 3.0, 0.0, -0.0, 1.0, 0.5, INF, -INF, NAN], dtype=dtype)
    x = torch.cartesian_prod(numbers, numbers).T.contiguous()
    assert_same({name: of_two(f) for name, f in TWO.items()}, x, making)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_operations_over_several_entries_have_the_numbers_of_the_processors_programs(dtype):
    """Those are compared with PyTorch. Functions such as exp are others in CUDA C: rounding differs."""
    x = points(dtype)
    captured = {name: capture(f, (x[:, 0].clone(),), name=name) for name, f in MATRICES.items()}
    functions = LINES | captured
    given = list(functions.values()), [x] * len(functions)
    told, relative = "", 1e-12 if dtype == torch.float64 else 2e-4
    for name, own, expected in zip(functions, native(*given, making), native(*given), strict=True):
        for what, one, other in zip(("value", "Jacobian"), own, expected, strict=True):
            size = other.nan_to_num(0, 0, 0).abs().amax()
            differs = ((one - other).abs() > relative * size) | (one.isnan() != other.isnan())
            if bool(differs.any()):
                told += f"{name}, {what}: {float((one - other).abs().amax() / size)}\n"
    assert not told, told

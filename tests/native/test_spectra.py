"""Eigenvalues and singular values of small matrices: values, first and second derivatives of PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mslsq.native.arrays import input_array
from mslsq.native.building import WrittenVector, linearized
from mslsq.native.recording import recorded
from mslsq.native.scalars import NotScalarError, Program
from mslsq.native.text import Argument
from mslsq.tracing.capture import capture
from mslsq.tracing.graph import TRANSFORM_LOCK, graph_of
from tests.native.functions import NEEDS_COMPILER, scalars_of
from tests.native.test_lines_and_matrices import told

pytestmark = NEEDS_COMPILER
L = torch.linalg
F64 = torch.float64


def symmetric(x: Tensor, n: int) -> Tensor:
    a = x[: n * n].reshape(n, n)
    return a + a.T


SPECTRA: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"eigvalsh {n}": lambda x, n=n: L.eigvalsh(symmetric(x, n)) for n in (1, 2, 3)},
    "of one triangle": lambda x: L.eigh(x[:9].reshape(3, 3)).eigenvalues,
    "of the other": lambda x: L.eigvalsh(x[:4].reshape(2, 2), UPLO="U"),
    "of several": lambda x: L.eigvalsh(x[:8].reshape(2, 2, 2)),
    "svdvals": lambda x: L.svdvals(x[:4].reshape(2, 2)),
    "spectral norm": lambda x: L.matrix_norm(x[1:5].reshape(2, 2), 2),
}


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_spectra_are_those_of_pytorch(dtype):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn((9, 12), generator=generator, dtype=F64)
    x[:, 8:] *= 10.0 ** torch.arange(-4, 4)[:4]  # small numbers
    x[1:3, 0] = x[5, 0] = 0  # nearly of two blocks
    x = x.to(dtype)
    captured = {name: capture(f, (x[:, 0].clone(),), name=name) for name, f in SPECTRA.items()}
    assert not told(captured, x, SPECTRA, 1e-12 if dtype == F64 else 2e-5)


def test_higher_derivatives_of_eigenvalues_are_those_of_pytorch():
    x, program = torch.randn((9, 4), generator=torch.Generator().manual_seed(1), dtype=F64), Program(F64)

    def function(y: Tensor) -> Tensor:
        return L.eigvalsh(symmetric(y, 3))[1]

    with TRANSFORM_LOCK, torch.no_grad():
        graph = graph_of(lambda y: [function(y)], [x[:, 0].clone()], guarded=True, functional=True)
        (value,) = recorded(program, graph, [input_array(0, x[:, 0])])
        one = program.constant(1, "real")
        first = linearized(
            program, list(value.reshape(-1)), {program.input(0, k, "real").number: {k: one} for k in range(9)}, 9
        )
        along = {program.input(0, k, "real").number: {0: one} for k in range(9)}  # all entries together
        second = linearized(program, first[:2], along, 1)
        third = linearized(program, second, along, 1)
    vector = WrittenVector.of(program, [Argument(9, True)], [*second, *third], 20_000).replayed()
    found = vector.values([x], [False], 1, 4)[0]
    ones = torch.ones(9, dtype=F64)

    def slopes(y: Tensor) -> Tensor:
        return torch.func.grad(function)(y)[:2]

    def bends(y: Tensor) -> Tensor:
        return torch.func.jvp(slopes, (y,), (ones,))[1]

    for lane in range(4):
        torch.testing.assert_close(found[:2, lane], bends(x[:, lane]), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(
            found[2:, lane], torch.func.jvp(bends, (x[:, lane],), (ones,))[1], rtol=1e-8, atol=1e-8
        )


def test_vectors_are_refused():
    with pytest.raises(NotScalarError, match="with its vectors"):
        scalars_of(lambda x: L.eigh(symmetric(x, 2)).eigenvectors, 4, F64)

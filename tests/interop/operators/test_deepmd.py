"""An operator of DeePMD-kit (a compressed embedding net) through `wrap`: right where the bare one is silently wrong.

It needs deepmd-kit with the PyTorch that it was built for (3.2: torch 2.11) and an MPI library that the loader finds.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vjp, vmap

import mslsq
from mslsq.interop.operators import OperatorError, wrap

WIDTH, ATOMS, NEIGHBOURS = 4, 2, 6
LOWER, UPPER, END, FINE, COARSE = 0.0, 2.0, 6.0, 0.1, 0.5


@pytest.fixture(scope="module")
def bare():
    deepmd = pytest.importorskip("deepmd", reason="no DeePMD-kit", exc_type=ImportError)
    path = Path(deepmd.__file__).parent / "lib/libdeepmd_op_pt.so"
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        pytest.skip(f"DeePMD-kit's operators do not load: {error.__cause__ or error}")
    return lambda x, em: torch.ops.deepmd.tabulate_fusion_se_a(TABLE, INFO, x, em, WIDTH)[0]


def features(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(1.3 * x), torch.cos(x), 0.3 * x, torch.tanh(x)], -1)


def descriptor(x: Tensor, em: Tensor) -> Tensor:
    return torch.einsum("ijk,ijm->ikm", em, features(x.reshape(ATOMS, NEIGHBOURS)))


def table() -> Tensor:
    """Quintic polynomials of `features` on every interval, as a compressed model has them."""
    fine, coarse = np.arange(LOWER, UPPER - 1e-9, FINE), np.arange(UPPER, END - 1e-9, COARSE)
    rows = []
    for start, length in [*zip(fine, [FINE] * len(fine)), *zip(coarse, [COARSE] * len(coarse))]:  # noqa: B905
        x = np.linspace(0, length, 12)
        rows.append(np.polynomial.polynomial.polyfit(x, features(torch.from_numpy(start + x)).numpy(), 5).T.reshape(-1))
    return torch.from_numpy(np.stack(rows))


TABLE, INFO = table(), torch.tensor([LOWER, UPPER, END, FINE, COARSE, -1.0], dtype=torch.float64)
GENERATOR = torch.Generator().manual_seed(0)
X = 3 * torch.rand(ATOMS * NEIGHBOURS, 1, generator=GENERATOR, dtype=torch.float64) + 0.2
EM = torch.randn(ATOMS, NEIGHBOURS, 4, generator=GENERATOR, dtype=torch.float64)


def test_a_strided_input_is_read_as_what_it_is(bare):
    strided = torch.cat([X, X + 1], 1)[:, :1]
    assert float((bare(strided, EM) - descriptor(X, EM)).abs().max()) > 0.1  # why one wraps
    torch.testing.assert_close(wrap(bare)(strided, EM), descriptor(X, EM), rtol=1e-6, atol=1e-6)


def test_transforms_and_a_fit_are_those_of_the_formula(bare):
    wrapped = wrap(bare, backward="autograd", second="differences", name="tabulate")
    many, ems = torch.stack([X, 0.9 * X + 0.1]), torch.stack([EM, 1.1 * EM])
    pulled = torch.randn(ATOMS, WIDTH, 4, dtype=torch.float64).transpose(1, 2)
    for transform in (
        lambda f: vmap(f)(many, ems),
        lambda f: vmap(jacrev(f))(many, ems),
        lambda f: vmap(jacfwd(f))(many, ems),
        lambda f: vjp(f, X, EM)[1](pulled)[0],
    ):
        torch.testing.assert_close(transform(wrapped), transform(descriptor), rtol=1e-5, atol=1e-5)
    bent, expected = (hessian(lambda x, f=f: (f(x, EM) ** 2).sum())(X) for f in (wrapped, descriptor))
    torch.testing.assert_close(bent, expected, rtol=1e-3, atol=1e-2)  # kinks of the table, and differences
    seen = wrapped(X, EM)

    def residual(x: Tensor) -> Tensor:
        return torch.cat([(wrapped(x, EM) - seen).flatten(), 1e-3 * (x - 1.5).flatten()])

    fit = mslsq.least_squares(residual, X + 0.1 * torch.randn(X.shape, generator=GENERATOR, dtype=X.dtype))
    assert fit.converged
    torch.testing.assert_close(fit.value, X, rtol=0, atol=1e-4)


def test_its_own_double_backward_is_a_silent_zero_and_is_refused(bare):
    wrapped = wrap(bare, backward="autograd", second="autograd", name="tabulate")
    with pytest.raises(OperatorError, match=r"second is wrong for 'x'.* it gives 0,"):
        hessian(lambda x: (wrapped(x, EM) ** 2).sum())(X)

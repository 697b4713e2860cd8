"""Complex views of pairs that do not lie together: what works, and what is said where PyTorch refuses."""

import itertools

import einops
import pytest
import torch

import mslsq
from mslsq.problem.layout import complex_view_hint
from mslsq.tracing.rewrites import as_complex, as_real

F64 = torch.float64
Y = torch.tensor([1 + 2j, -3j, 0.5 + 0j], dtype=torch.complex128)


def of_rearranged(p):
    return torch.view_as_complex(einops.rearrange(p, "two b -> b two")) - Y


def of_parts(p):
    x = einops.rearrange(p, "two b -> b two")
    return torch.complex(x[..., 0], x[..., 1]) - Y


def test_the_error_of_a_residual_says_what_to_write():
    with pytest.raises(mslsq.ProblemError, match=r"Write torch.complex\(x\[..., 0\], x\[..., 1\]\)"):
        mslsq.least_squares(of_rearranged, torch.zeros(2, 3, dtype=F64))

    class Rearranged(mslsq.CostFunction):
        def residual(self, p):
            return torch.view_as_complex(einops.rearrange(p, "(two b) -> b two", two=2))

    with pytest.raises(mslsq.ProblemError, match=r"Write torch.complex\(x\[..., 0\], x\[..., 1\]\)"):
        mslsq.Problem(Rearranged(mslsq.Variable("p", mslsq.Euclidean(6))))


def test_what_it_says_works():
    solution = mslsq.least_squares(of_parts, torch.zeros(4, 2, 3, dtype=F64), in_dims=0)
    assert bool(solution.converged.all())
    torch.testing.assert_close(solution.value[0], torch.stack((Y.real, Y.imag)))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_view_that_one_problem_allows_is_allowed_wherever_the_batch_axis_is(axis):
    x0 = torch.randn(5, 3, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    solution = mslsq.least_squares(lambda p: torch.view_as_complex(p) - Y, x0.movedim(0, axis), in_dims=axis)
    torch.testing.assert_close(solution.value, torch.view_as_real(Y).expand(5, 3, 2))


@pytest.mark.parametrize(
    "message",
    [
        "Tensor must have a last dimension with stride 1",
        "Tensor must have a stride divisible by 2 for all but last dimension",
    ],
)
def test_pytorch_still_says_what_is_looked_for(message):
    strided = {"1": torch.zeros(2, 3).T, "2": torch.zeros(3, 3)[:, :2]}["1" if "stride 1" in message else "2"]
    with pytest.raises(RuntimeError) as raised:
        torch.view_as_complex(strided)
    assert complex_view_hint(raised.value)
    assert not complex_view_hint(RuntimeError("shape '[3]' is invalid"))
    assert not complex_view_hint(ValueError(message))


LAYOUTS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("sizes", [(3, 4), (1, 4), (3, 1), (1, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_library_s_own_complex_views_take_any_layout(sizes, layout):
    generator = torch.Generator().manual_seed(1)
    shape = (*sizes, 2)
    stored = torch.randn([shape[k] for k in layout], dtype=F64, generator=generator)
    x = stored.permute(*(layout.index(k) for k in range(3)))
    expected = torch.complex(x[..., 0].clone(), x[..., 1].clone())
    torch.testing.assert_close(as_complex(x), expected)
    torch.testing.assert_close(as_real(as_complex(x)), x.clone())
    wide = torch.stack((x, x + 1), -1)[..., 0]  # every stride doubled
    torch.testing.assert_close(as_complex(wide), expected)
    for axis in range(2):
        mapped = torch.func.vmap(as_complex, in_dims=axis, out_dims=axis)(x)
        torch.testing.assert_close(mapped, expected)
        _, tangent = torch.func.jvp(torch.func.vmap(as_complex, in_dims=axis, out_dims=axis), (x,), (x,))
        torch.testing.assert_close(tangent, expected)

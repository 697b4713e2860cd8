"""Complex numbers and Fourier transforms in native programs: values and Jacobians of PyTorch."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.tracing.capture import capture
from tests.native.functions import NEEDS_COMPILER
from tests.native.test_lines_and_matrices import points, told

pytestmark = NEEDS_COMPILER
fft = torch.fft
F64 = torch.float64
Way = Literal["never", "wait"]


def z(x: Tensor) -> Tensor:
    return torch.complex(x[:4], x[4:8])


def w(x: Tensor) -> Tensor:
    return torch.complex(x[1:5], x[5:9])


def real(x: Tensor) -> Tensor:
    return torch.view_as_real(x)


def warburg(x: Tensor) -> Tensor:
    root = torch.sqrt(1j * x)
    return real(torch.tanh(root) / root)


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda x: real(z(x) * w(x)),
    "quotient": lambda x: real(z(x) / w(x)),
    "of a real number": lambda x: real(x[0] / (1 + 1j * x[1:5])),
    "inverse": lambda x: real(1 / (z(x) + 2)),
    "sum and mean": lambda x: real(torch.stack([(z(x) + 1j * x[0]).sum(), (z(x) - x[1]).mean()])),
    "size": lambda x: z(x).abs(),
    "angle": lambda x: z(x).angle(),
    "parts": lambda x: z(x).real * w(x).imag,
    "conjugate": lambda x: real(z(x).conj() * w(x)),
    "polar": lambda x: real(torch.polar(x[:3].abs(), x[3:6])),
    "direction": lambda x: real(z(x).sgn()),
    **{
        name: lambda x, name=name: real(getattr(torch, name)(z(x)))
        for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "square", "reciprocal", "rsqrt")
    },
    "powers": lambda x: real(z(x) ** 2 + z(x) ** 0.5 + z(x) ** -1 + z(x) ** 1.7),
    "complex exponent": lambda x: real(z(x) ** w(x)),
    "matrices": lambda x: real(z(x).reshape(2, 2) @ w(x).reshape(2, 2)),
    "where": lambda x: real(torch.where(x[:4] > 0, z(x), w(x))),
    "impedance": lambda x: (x[0] + 1 / (1 / x[1] + (1j * x[2:6].abs()) ** 0.8 * x[7])).imag,
    "Warburg": lambda x: warburg(x[:3].abs() + 0.1),
    "constants": lambda x: real(z(x) * torch.tensor([1 + 2j, 1j, 3, -1], dtype=z(x).dtype)),
    "indices": lambda x: real(torch.cat([z(x).flip(0), w(x)[1:3]]).reshape(2, 3).T),
}
FOURIER: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"fft of {n}": lambda x, n=n: real(fft.fft(x[:n])) for n in (1, 2, 5, 8)},
    **{f"rfft of {n}": lambda x, n=n: real(fft.rfft(x[:n])) for n in (6, 9)},
    "ifft": lambda x: real(fft.ifft(z(x))),
    "irfft": lambda x: fft.irfft(z(x)),
    "irfft of an odd length": lambda x: fft.irfft(z(x), 7),
    "normalized": lambda x: real(fft.fft(z(x), norm="ortho")) + real(fft.fft(z(x), norm="forward")),
    "rfft2": lambda x: real(fft.rfft2(x[:6].reshape(2, 3))),
    "irfft2": lambda x: fft.irfft2(z(x).reshape(2, 2)),
    "padded": lambda x: real(fft.fft(x[:3], 8)),
    "spectrum": lambda x: fft.rfft(x).abs() ** 2,
    "shifted": lambda x: real(fft.fftshift(fft.fft(x[:4]))),
    "convolved": lambda x: fft.irfft(fft.rfft(x[:8]) * fft.rfft(x[1:9]), 8),
}


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_complex_numbers_are_those_of_pytorch(dtype):
    functions, x = COMPLEX | FOURIER, points(dtype)[:, :8]
    captured = {name: capture(f, (x[:, 0].clone(),), name=name) for name, f in functions.items()}
    assert not told(captured, x, functions, 1e-12 if dtype == F64 else 3e-5)


FREQUENCIES = torch.logspace(-1, 2, 15, dtype=F64)


def impedance(p: Tensor, y: Tensor) -> Tensor:
    return p[0] + p[1] / (1 + 1j * FREQUENCIES * p[2]) - y


@pytest.mark.parametrize("loss", [None, mslsq.Huber(0.02)])
def test_fits_of_complex_measurements_are_whole_programs(loss):
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(20, 3, generator=generator, dtype=F64) + 0.5
    noise = torch.view_as_complex(0.01 * torch.randn(20, 15, 2, generator=generator, dtype=F64))
    y = torch.stack([impedance(p, torch.zeros(())) for p in truth]) + noise
    start = torch.ones(3, dtype=F64)

    def solved(native: Way) -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(native=native)
        return mslsq.least_squares(impedance, start, (y,), in_dims=(None, 0), solver=solver, loss=loss)

    python, compiled = solved("never"), solved("wait")
    torch.testing.assert_close(compiled.value, python.value, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(compiled.cost, python.cost, rtol=1e-9, atol=1e-12)

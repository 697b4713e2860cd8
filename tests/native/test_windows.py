"""Pooling, resampling, the largest of a line, and cells of networks: values and Jacobians of PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mslsq.tracing.capture import capture
from tests.native.functions import NEEDS_COMPILER
from tests.native.test_lines_and_matrices import points, special, told

pytestmark = NEEDS_COMPILER
F = torch.nn.functional
F64 = torch.float64
Function = Callable[[Tensor], Tensor]


def plane(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 3, 3)


def line(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 9)


WINDOWS: dict[str, Function] = {
    "max_pool1d": lambda x: F.max_pool1d(line(x), 3, 2, padding=1),
    "max_pool2d": lambda x: F.max_pool2d(plane(x), 2, stride=1),
    "max_pool2d, with a rest": lambda x: F.max_pool2d(plane(x), 2, ceil_mode=True),
    "max_pool1d, dilated": lambda x: F.max_pool1d(line(x), 2, dilation=3),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(line(x), 4),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(plane(x), 2),
    "avg_pool1d": lambda x: F.avg_pool1d(line(x), 3, 2, padding=1),
    "avg_pool2d": lambda x: F.avg_pool2d(plane(x), 2, padding=1, count_include_pad=False),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(line(x), 4),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(plane(x), 2),
    "nearest": lambda x: F.interpolate(line(x), scale_factor=1.7),
    "linear": lambda x: F.interpolate(line(x), size=13, mode="linear"),
    "bilinear": lambda x: F.interpolate(plane(x), size=(4, 5), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(plane(x), scale_factor=1.5, mode="bicubic"),
    "area": lambda x: F.interpolate(line(x), size=4, mode="area"),
    "cummax": lambda x: x.cummax(0).values,
    "cummin": lambda x: x.reshape(3, 3).cummin(1).values,
    "topk": lambda x: x.topk(3).values,
    "smallest": lambda x: x.reshape(3, 3).topk(2, 0, largest=False).values,
    "from large to small": lambda x: x[:5].sort(descending=True).values,
    "conv_transpose1d": lambda x: F.conv_transpose1d(
        x[:6].reshape(1, 2, 3), x[1:5].reshape(2, 1, 2), x[:1], stride=2, padding=1, output_padding=1
    ),
    "nn.Bilinear": lambda x: F.bilinear(x[None, :2], x[None, 2:5], x[:6].reshape(1, 2, 3), x[8:]),
}
CELLS: dict[str, torch.nn.Module] = {"GRUCell": torch.nn.GRUCell(3, 2), "LSTMCell": torch.nn.LSTMCell(3, 2)}


def cells(dtype: torch.dtype) -> dict[str, Function]:
    generator = torch.Generator().manual_seed(0)
    for cell in CELLS.values():
        for parameter in cell.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=F64).to(dtype)
    return {
        "GRUCell": lambda x: CELLS["GRUCell"](x[None, :3], x[None, 3:5]),
        "LSTMCell": lambda x: torch.cat(CELLS["LSTMCell"](x[None, :3], (x[None, 3:5], x[None, 5:7]))),
    }


def captured(functions: dict[str, Function], x: Tensor) -> dict[str, Function]:
    return {name: capture(f, (x[:, 0].clone(),), name=name) for name, f in functions.items()}


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_windows_and_cells_are_those_of_pytorch(dtype):
    x = points(dtype)[:, :6]
    functions = {**WINDOWS, **cells(dtype)}
    assert not told(captured(functions, x), x, functions, 1e-12 if dtype == F64 else 2e-5)


def test_ties_and_what_is_not_finite_have_the_values_of_pytorch():
    # PyTorch multiplies what a window does not hold by zero, which makes NaN of what is infinite.
    names = [name for name in WINDOWS if "pool" in name or "cum" in name or name in ("topk", "from large to small")]
    functions = {name: WINDOWS[name] for name in names if "avg" not in name}
    x = torch.cat([special(F64), points(F64)[:, 6:]], 1)
    assert not told(captured(functions, x), x, functions, 1e-12, jacobians=False)

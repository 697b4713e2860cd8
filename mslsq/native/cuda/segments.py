"""Sums of products over sorted segments (`source/segments.h`): kernels for each width, compiled when first needed."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from mslsq.native.cuda.driver import Module
from mslsq.native.cuda.programs import LARGEST_GRID, Cuda, Tools
from mslsq.native.cuda.text import THREADS, source

WIDEST = 8
"""Columns of a product that a thread adds up: eight sums, and their factors, in registers."""


class Tensor4(ctypes.Structure):
    """That of `segments.h`."""

    _fields_ = (("first", ctypes.c_void_p), *((name, ctypes.c_long) for name in ("problem", "row", "tangent", "lane")))

    @classmethod
    def of(cls, tensor: Tensor) -> "Tensor4":
        """Of (problems, rows, tangent, lanes), or (problems, rows, lanes), where all of a tangent has one number."""
        problem, row, *tangent, lane = tensor.stride()
        return cls(tensor.data_ptr(), problem, row, tangent[0] if tangent else 0, lane)


class Products(ctypes.Structure):
    """Those of `segments.h`."""

    _fields_ = (
        ("left", Tensor4),
        ("right", Tensor4),
        *((name, ctypes.c_void_p) for name in ("lanes", "firsts", "seconds", "begins", "places", "sums")),
        *((name, ctypes.c_long) for name in ("next", "chunks", "rows", "height", "stride")),
    )


class Chunks(ctypes.Structure):
    """Those of `segments.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("begins", "places", "sums")),
        *((name, ctypes.c_long) for name in ("next", "first", "count", "height", "width", "stride")),
    )


@dataclass(eq=False)
class SegmentKernels:
    """The kernels of one dtype."""

    dtype: torch.dtype
    tools: Tools
    _modules: dict[int, Module] = field(default_factory=dict)

    def module(self, width: int) -> Module:
        """Those for products of this width. CompilerError where they cannot be compiled or loaded."""
        if width not in self._modules:
            compiled = self.tools.compiled(segments_text(self.dtype, width))
            self._modules[width] = self.tools.load(compiled.image)
        return self._modules[width]

    def add_products(
        self, width: int, left: Tensor, right: Tensor, plan: Sequence[Tensor], sums: Tensor, height: int, stride: int
    ) -> None:
        """Fill the sums of all chunks.

        Args:
            left, right: as `Tensor4.of` takes them.
            plan: lanes, firsts, seconds, begins and places, int64 and contiguous.
            sums: (problems, numbers), contiguous.
        """
        chunks = len(plan[-1])
        given = Products(
            Tensor4.of(left),
            Tensor4.of(right),
            *(x.data_ptr() for x in plan),
            sums.data_ptr(),
            sums.stride(0),
            chunks,
            left.shape[1],
            height,
            stride,
        )
        self._launch(width, "add_products", given, chunks * height, len(left))

    def add_chunks(
        self, width: int, plan: Sequence[Tensor], sums: Tensor, first: int, height: int, stride: int
    ) -> None:
        """Add up the chunks of every place that has several.

        Args:
            plan: begins and places.
            first: where the sums of such chunks begin.
        """
        count = len(plan[-1])
        given = Chunks(
            *(x.data_ptr() for x in plan), sums.data_ptr(), sums.stride(0), first, count, height, width, stride
        )
        self._launch(width, "add_chunks", given, count * height * width, len(sums))

    def _launch(self, width: int, kernel: str, given: ctypes.Structure, count: int, problems: int) -> None:
        if not count * problems:
            return
        grid = min(-(-count // THREADS), LARGEST_GRID[0]), min(problems, LARGEST_GRID[1])
        self.module(width).launch(f"{kernel}_{width}", grid, THREADS, (given, ctypes.c_long(problems)))


def segments_text(dtype: torch.dtype, width: int) -> str:
    """The kernels for products of one width."""
    kernels = {"add_products": ("Products", f"add_products<{width}>"), "add_chunks": ("Chunks", "add_chunks")}
    parts = [
        f"""
extern "C" __global__ void __launch_bounds__(THREADS)
{name}_{width}(const {kind} given, const long problems) {{
    {function}(given, problems);
}}"""
        for name, (kind, function) in kernels.items()
    ]
    return source(parts, dtype, ("segments.h",))


def are_for(device: torch.device) -> bool:
    """Are sums over segments for tensors of this device?"""
    return device.type == "cuda"


@cache
def segment_kernels(device: torch.device, dtype: torch.dtype) -> SegmentKernels:
    """Those of a GPU in this process."""
    return SegmentKernels(dtype, Cuda(device))

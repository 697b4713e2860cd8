"""When a recorded graph becomes a native program: once it has been replayed often, and never within a solve.

The program computes what the graph computes, with sums in another order: it is compared with the graph before its first
use, on the numbers of a call.
"""

import copy
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Node

from mslsq.native.choice import Native
from mslsq.native.graphs.arrays import NoLoopError
from mslsq.native.graphs.calling import UnfitError
from mslsq.native.graphs.segments import Segments
from mslsq.native.store import Build, request
from mslsq.tracing.recording import Recorded

OPERATIONS = 200_000
"""Operations that PyTorch has done for a graph when its program is begun: 0.7 s. The compiler takes one to two
seconds beside the solves, the text 0.1 s. They are counted and not timed: with `native="wait"` two runs are equal."""

NUMBERS = 4096
"""Numbers that take an operation as long as it takes to begin with it."""

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""What may lie between the numbers of a program and those of its graph, relative to the largest of the tensor..."""

NOISE = 1e3
"""... and how many times the difference that inputs changed by `MOVED` units in the last place make to the graph, to
the number itself or to half of its tensor: what is rounding alone may be zero by chance."""

MOVED = (8.0, -8.0, 24.0)

TRIED = 3
"""Calls in which a program is compared before it is refused: where rounding decides, one may differ."""


class NativeGraphWarning(UserWarning):
    """A native program computes other numbers than the recorded graph; it is not used."""


class GraphProspect:
    """The native program of one graph on its way."""

    def __init__(self, recorded: Recorded):
        self.why_not = ""
        self.is_wanted = False
        """Is it begun however often the graph has been replayed, since another is waiting for it?"""
        self._recorded = recorded
        self._operations = sum(map(_effort, recorded.graph.graph.nodes))
        self._compared = 0
        self._segments: Segments | None = None
        self._build: Build | None = None
        self._call: Callable[..., list[Tensor]] | None = None
        self._form: Recorded | None = None

    @property
    def is_in_use(self) -> bool:
        """Has the program been compared, and taken up?"""
        return self._form is not None

    def form(self, wish: Native) -> Recorded:
        """What is to run now: the graph, or its program."""
        if self._form is not None:
            return self._form
        pays = self.is_wanted or self._operations * self._recorded.replays >= OPERATIONS
        if self.why_not or not pays:
            return self._recorded
        try:
            return self._advanced(wait=wish == "wait")
        except NoLoopError as error:
            self.why_not = str(error)
        return self._recorded

    def _advanced(self, wait: bool) -> Recorded:
        """One step further on the way: written, compiled, compared."""
        if self._segments is None:
            self._segments = Segments(self._recorded.graph, _precision(self._recorded))
        if self._build is None or (wait and self._call is None):
            self._build = request(self._segments.source, wait=wait)
        if self._call is None:
            library = self._build.library()
            self.why_not = self._build.why
            if library is None:
                return self._recorded
            self._call = self._segments.callable(library)
        compared = copy.copy(self._recorded)
        compared.run_by(self._comparing())
        return compared

    def _comparing(self) -> Callable[..., list[Tensor]]:
        """The graph, which looks in its first call whether the program does the same."""
        has_looked = False

        def both(*tensors: Tensor) -> list[Tensor]:
            nonlocal has_looked
            expected = self._recorded.flat(list(tensors))
            if not has_looked:
                has_looked = True
                self._judge(tensors, expected)
            return expected

        return both

    def _judge(self, tensors: tuple[Tensor, ...], expected: list[Tensor]) -> None:
        """Take the program up if it does the same."""
        assert self._call is not None
        rounded = zip(*[self._recorded.flat([_moved(x, by) for x in tensors]) for by in MOVED], strict=True)
        try:
            found = self._call(*tensors)
        except UnfitError as error:
            self.why_not = str(error)
            return
        if all(map(_agree, found, expected, rounded)):
            form = copy.copy(self._recorded)
            form.run_by(self._trusting(self._call))
            assert self._segments is not None and self._build is not None  # they made the call
            library = self._build.library()
            form.whole = None if library is None else self._segments.whole(library)
            self._form = form
            return
        self._compared += 1
        if self._compared == TRIED:
            self.why_not = "its numbers differ from those of PyTorch"
            warnings.warn(
                "The native program of a recorded graph computes other numbers than PyTorch, which is used instead. "
                "Please report this with the residual; native='never' on the solver avoids the attempt.",
                NativeGraphWarning,
                stacklevel=2,
            )

    def _trusting(self, call: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
        """The program; the graph for tensors that the program is not for, and from then on."""

        def trusted(*tensors: Tensor) -> list[Tensor]:
            try:
                return call(*tensors)
            except UnfitError as error:
                self.why_not, self._form = str(error), None
                return self._recorded.flat(list(tensors))

        return trusted


def _precision(recorded: Recorded) -> torch.dtype:
    """The one dtype of real numbers among the inputs."""
    found = {node.meta["tensor_meta"].dtype for node in recorded.graph.graph.nodes if node.op == "placeholder"}
    real = [dtype for dtype in found if dtype.is_floating_point]
    if len(real) != 1 or real[0] not in RELATIVE:
        raise NoLoopError("it is not of one precision, float64 or float32")
    if recorded.device != "cpu":
        raise NoLoopError("it runs on another device")
    return real[0]


def _effort(node: Node) -> int:
    """As how many operations on few numbers this counts."""
    if node.op != "call_function":
        return 0
    shape = getattr(node.meta.get("tensor_meta"), "shape", None)  # of several tensors there is none
    return 1 if shape is None else 1 + shape.numel() // NUMBERS


def _moved(tensor: Tensor, units: float) -> Tensor:
    """Numbers that differ from these by little more than rounding."""
    if not tensor.is_floating_point():
        return tensor
    return tensor * (1 + units * torch.finfo(tensor.dtype).eps)


def _agree(found: Tensor, expected: Tensor, rounded: Sequence[Tensor]) -> bool:
    """Are these the same numbers, but for rounding? Where a decision hangs on that, nothing can be told."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        hangs = torch.stack([expected != other for other in rounded]).any(0)
        return bool(((found == expected) | hangs).all())
    size = torch.where(torch.isfinite(expected), expected.abs(), 0)
    largest = size.amax() if size.numel() else size.sum()
    noise = torch.stack([_apart(expected, other) for other in rounded]).amax(0)
    usual = noise.median() if noise.numel() else noise.sum()
    allowed = RELATIVE[expected.dtype] * largest + NOISE * (noise + torch.where(torch.isfinite(usual), usual, 0))
    close = (found - expected).abs() <= allowed
    return bool((close | (found == expected) | (found.isnan() & expected.isnan()) | torch.isinf(allowed)).all())


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """The distances of these numbers, infinite where only one of two is a number."""
    apart = (one - other).abs().nan_to_num(torch.inf, torch.inf)
    return torch.where((one == other) | (one.isnan() & other.isnan()), 0, apart)

"""A recorded graph of a GPU as one CUDA graph: its kernels are launched together, instead of one after the other from
Python.

A CUDA graph reads and writes the same memory in every replay. So inputs are copied to where it reads (only those that
have changed since: the data of a solve are copied once), and outputs from where it writes. No GPU has run this: it is
off unless the environment variable MSLSQ_CUDA_GRAPHS is 1.
"""

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mslsq.private import version_of

VARIABLE = "MSLSQ_CUDA_GRAPHS"

WARM_UP = 3
"""Calls before the capture, in which libraries make what they keep, as PyTorch's documentation has it."""

Call = Callable[..., Sequence[Tensor]]


def is_wanted() -> bool:
    """Does the environment ask for CUDA graphs?"""
    return os.environ.get(VARIABLE, "").strip() == "1"


class Graphs(Protocol):
    """What captures and replays."""

    def stream(self, device: torch.device) -> int:
        """The stream in which the caller works."""
        ...

    def captured(self, function: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        """What replays a function of fixed tensors, and the tensors that it fills. RuntimeError where it cannot be
        captured."""
        ...


class CudaGraphs:
    """PyTorch's."""

    def stream(self, device: torch.device) -> int:
        return torch.cuda.current_stream(device).cuda_stream

    def captured(self, function: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = function()
        return graph.replay, outputs


class _Input:
    """Memory that a capture reads, in the layout of a tensor."""

    def __init__(self, like: Tensor):
        once = _once(like)
        self._memory = torch.empty_strided(once.shape, once.stride(), dtype=like.dtype, device=like.device)
        self.tensor = self._memory.expand(like.shape)
        self._source: weakref.ref[Tensor] | None = None
        self._written = 0

    def take(self, tensor: Tensor) -> None:
        """Its numbers, unless they are here already. (What is written into an inference tensor is not counted.)"""
        is_known = self._source is not None and self._source() is tensor and not tensor.is_inference()
        if not (is_known and self._written == version_of(tensor)):
            self._memory.copy_(_once(tensor))
            self._source, self._written = weakref.ref(tensor), version_of(tensor)


def _once(tensor: Tensor) -> Tensor:
    """A tensor without the repetitions of `expand`."""
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


class _Fixed(NamedTuple):
    """A captured call, with the memory that it reads and writes."""

    replay: Callable[[], None]
    inputs: list[_Input]
    outputs: list[Tensor]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for own, x in zip(self.inputs, tensors, strict=True):
            own.take(x)
        self.replay()
        return [x.clone() for x in self.outputs]


class CudaGraphCall:
    """A call of tensors on a GPU, captured at its first call, once for every stream and every layout of its inputs.

    Args:
        call: the recorded graph's own.
        say: is told why it cannot be captured, in a sentence; the call itself runs then.
    """

    def __init__(self, call: Call, say: Callable[[str], None], graphs: Graphs | None = None):
        self.call, self._say = call, say
        self._graphs: Graphs = CudaGraphs() if graphs is None else graphs
        self._fixed: dict[Hashable, _Fixed] = {}
        self._lock = threading.Lock()
        self.why_not = ""

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        if self.why_not or not tensors:
            return list(self.call(*tensors))
        stream = self._graphs.stream(tensors[0].device)
        key = stream, *((x.stride(), x.is_conj(), x.is_neg()) for x in tensors)
        with self._lock:  # two threads would write into the same memory
            fixed = self._fixed.get(key) or self._captured(key, tensors)
            if fixed is not None:
                return fixed.run(tensors)
        return list(self.call(*tensors))

    def _captured(self, key: Hashable, tensors: Sequence[Tensor]) -> _Fixed | None:
        inputs = [_Input(x) for x in tensors]
        for own, x in zip(inputs, tensors, strict=True):
            own.take(x)
        given = [own.tensor for own in inputs]
        try:
            replay, outputs = self._graphs.captured(lambda: list(self.call(*given)))
        except RuntimeError as error:
            first = (str(error).splitlines() or [""])[0]
            self.why_not = f"{type(error).__name__}: {first}"
            self._say(f"A recorded graph is not captured as a CUDA graph, and replayed as before ({self.why_not}).")
            return None
        self._fixed[key] = _Fixed(replay, inputs, outputs)
        return self._fixed[key]

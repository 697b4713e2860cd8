"""CUDA graphs without a GPU: a substitute for PyTorch's captures and replays, on fixed memory, as a GPU does."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.front import plans
from mslsq.tracing import cuda_graph, recording
from mslsq.tracing.cuda_graph import CudaGraphCall
from mslsq.tracing.recording import Recorded

F64 = torch.float64


class FixedMemory:
    """Captures a function once; a replay fills the same outputs from the same inputs."""

    def __init__(self) -> None:
        self.captures, self.replays, self.current = 0, 0, 7

    def stream(self, device: torch.device) -> int:
        return self.current

    def captured(self, function: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        self.captures += 1
        outputs = function()

        def replay() -> None:
            self.replays += 1
            for own, x in zip(outputs, function(), strict=True):
                own.copy_(x)

        return replay, outputs


class NoCapture(FixedMemory):
    def captured(self, function: Callable[[], list[Tensor]]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def parts(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x * y, (x + y).sum(0)]


def said(sentences: list[str]) -> Callable[[str], None]:
    return sentences.append


def test_replays_give_what_the_call_gives_and_outputs_are_the_callers_own():
    graphs = FixedMemory()
    call = CudaGraphCall(parts, said([]), graphs)
    x, y = torch.rand(3, 4, dtype=F64), torch.rand(3, 4, dtype=F64)
    first = call(x, y)
    kept = [z.clone() for z in first]
    second = call(2 * x, y)
    assert all(map(torch.equal, first, kept)) and all(map(torch.equal, second, parts(2 * x, y)))
    assert (graphs.captures, graphs.replays) == (1, 2)


def test_what_has_changed_is_copied_again_and_nothing_else():
    graphs = FixedMemory()
    call = CudaGraphCall(parts, said([]), graphs)
    x, y = torch.rand(3, 4, dtype=F64), torch.rand(3, 4, dtype=F64)
    call(x, y)
    (fixed,) = call._fixed.values()
    fixed.inputs[1].tensor.fill_(1.0)  # seen in the result, as long as y is not copied again
    assert torch.equal(call(x, y)[0], x)
    y.mul_(2)  # in place: another version
    assert torch.equal(call(x, y)[0], x * y)
    fixed.inputs[1].tensor.fill_(1.0)
    assert torch.equal(call(x, y.clone())[0], x * y)


def test_every_layout_and_every_stream_has_a_capture_of_its_own():
    graphs = FixedMemory()
    call = CudaGraphCall(parts, said([]), graphs)
    x, y = torch.rand(3, 3, dtype=F64), torch.rand(3, 3, dtype=F64)
    wide = torch.rand(3, 6, dtype=F64)[:, ::2]
    for one in (x, x.T, x, x[:1].expand(3, 3), x[1:2].expand(3, 3), wide, wide + 1, wide):
        assert all(map(torch.equal, call(one, y), parts(one, y)))
    assert [fixed.inputs[0].tensor.stride() for fixed in call._fixed.values()] == [(3, 1), (1, 3), (0, 1), (6, 2)]
    assert graphs.captures == 4
    graphs.current = 8
    call(x, y)
    assert graphs.captures == 5


def test_what_cannot_be_captured_runs_as_before_and_says_so_once():
    sentences: list[str] = []
    call = CudaGraphCall(parts, said(sentences), NoCapture())
    x, y = torch.rand(3, 4, dtype=F64), torch.rand(3, 4, dtype=F64)
    for _ in range(2):
        assert all(map(torch.equal, call(x, y), parts(x, y)))
    assert sentences == [
        "A recorded graph is not captured as a CUDA graph, and replayed as before (RuntimeError: operation not "
        "permitted when stream is capturing)."
    ]


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_only_the_environment_asks_for_them(value, monkeypatch):
    monkeypatch.setenv(cuda_graph.VARIABLE, value)
    assert cuda_graph.is_wanted() == (value == "1")


def test_recorded_steps_are_captured_where_they_are_of_a_gpu(monkeypatch):
    """Of tensors of the CPU that are said to be of a GPU: a solve takes the same steps to the same bits."""
    graphs, t = FixedMemory(), torch.linspace(0, 1, 16, dtype=F64)
    y = 2 * torch.exp(-torch.rand(5, 1, dtype=F64, generator=torch.Generator().manual_seed(0)) * t) + 0.1

    def solved() -> mslsq.Solution:
        monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())  # graphs are recorded again

        def residual(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
            return p[0] * torch.exp(p[1] * t) + p[2] - y

        solver = mslsq.LevenbergMarquardt(native="never", trace="always", max_steps=30)
        start = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
        return mslsq.least_squares(residual, start, (t, y), in_dims=(None, None, 0), solver=solver)

    plain = solved()
    monkeypatch.setenv(cuda_graph.VARIABLE, "1")
    solved()
    assert not graphs.captures  # of a CPU there are none
    made = Recorded.__init__

    def on_gpu(self: Any, *args: Any) -> None:
        made(self, *args)
        self.device = "cuda"

    monkeypatch.setattr(Recorded, "__init__", on_gpu)
    monkeypatch.setattr(recording, "CudaGraphCall", Substitute)
    monkeypatch.setattr(Substitute, "graphs", graphs)
    found = solved()
    assert graphs.captures and graphs.replays > int(found.num_steps.max())
    assert torch.equal(found.value, plain.value) and torch.equal(
        found.history.cost.nan_to_num(), plain.history.cost.nan_to_num()
    )


class Substitute(CudaGraphCall):
    graphs: Any = None

    def __init__(self, call: Any, say: Any):
        super().__init__(call, say, self.graphs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_capture_on_a_gpu_gives_what_the_call_gives():
    sentences: list[str] = []
    call = CudaGraphCall(parts, said(sentences))
    x, y = torch.rand(3, 4, device="cuda"), torch.rand(3, 4, device="cuda")
    for factor in (1.0, 2.0, 3.0):
        torch.testing.assert_close(call(factor * x, y), parts(factor * x, y))
    assert not sentences and len(call._fixed) == 1

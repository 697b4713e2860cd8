"""When there are programs on a GPU, and what is said where there are none."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.kernels.build import CompilerError
from mslsq.linearize import programs
from mslsq.linearize.plan import Plan
from mslsq.native.building import Making
from mslsq.native.cuda import driver, nvrtc
from mslsq.native.cuda.programs import CudaMaking, making
from mslsq.native.scalars import NotScalarError
from mslsq.native.text import Argument
from tests.linearize.test_programs import attempts, blocks_only
from tests.native.cuda.host import Host, host_driver
from tests.native.functions import NEEDS_COMPILER, scalars_of

__all__ = ["attempts", "blocks_only"]
F64 = torch.float64


def plan_on(device: str, compressed: Any = None) -> Any:
    columns = [SimpleNamespace(device=torch.device(device))]
    is_on_cpu = device == "cpu"
    return SimpleNamespace(structure=SimpleNamespace(columns=columns), compressed=compressed, is_on_cpu=is_on_cpu)


@pytest.mark.parametrize(
    ("device", "wishes"), [("cpu", {"auto", "wait"}), ("cuda:1", {"wait"}), ("mps", set()), ("meta", set())]
)
def test_which_devices_have_programs(device, wishes):
    assert {wish for wish in ("auto", "wait", "never") if Plan.may_have_programs(plan_on(device), wish)} == wishes
    assert not Plan.may_have_programs(plan_on(device, compressed=object()), "wait")


@NEEDS_COMPILER
def test_the_device_says_what_is_compiled():
    written = [scalars_of(lambda x: x * x, 2, F64)]
    assert isinstance(making(written, torch.device("cpu")), Making)
    assert isinstance(making(written, torch.device("cuda:0")), CudaMaking)
    with pytest.raises(CompilerError, match="device 'mps'"):
        making(written, torch.device("mps"))


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MSLSQ_NVRTC", "/nowhere/libnvrtc.so")
    nvrtc.nvrtc.cache_clear()
    yield
    nvrtc.nvrtc.cache_clear()


class WithoutNvrtc(Host):
    def compiled(self, source: str) -> Any:
        return nvrtc.nvrtc().compiled(source, 90)


def test_without_nvrtc_pytorch_solves_and_verbose_says_so(nowhere, attempts, monkeypatch, capsys):
    monkeypatch.setattr(programs, "making", lambda written, device: CudaMaking(written, WithoutNvrtc()))
    start, solver = torch.zeros(1, dtype=F64), mslsq.LevenbergMarquardt(verbose=True)
    solution = mslsq.least_squares(lambda p: p - 1, start, solver=solver)
    assert bool(solution.converged) and attempts[0].made is None
    said = capsys.readouterr().out
    assert "NVRTC was not found" in said and "MSLSQ_NVRTC" in said


def test_what_a_solve_that_does_not_wait_is_told():
    made = CudaMaking([scalars_of(lambda x: x * x, 2, F64)], WithoutNvrtc())
    assert not made.is_settled and made.programs() is None
    assert "native='wait'" in made.build.sentence("'fit'")


def test_a_kernel_of_too_many_arguments_is_refused():
    written = scalars_of(lambda x: x * x, 2, F64)
    many = SimpleNamespace(inputs=[Argument(1, True)] * 200, outputs=written.outputs, program=written.program)
    with pytest.raises(NotScalarError, match="202 inputs and outputs"):
        CudaMaking([many], WithoutNvrtc())  # pyright: ignore[reportArgumentType]


def test_without_a_driver_it_is_said(monkeypatch):
    monkeypatch.setattr(driver, "NAMES", ("libno-driver-here.so",))
    driver.driver.cache_clear()
    with pytest.raises(CompilerError, match="no driver of a GPU"):
        driver.driver()
    driver.driver.cache_clear()


@NEEDS_COMPILER
def test_what_the_driver_refuses_is_said():
    device = torch.device("cpu")
    with pytest.raises(driver.DriverError, match="cuModuleLoadData failed: device kernel image is invalid"):
        host_driver().load(b"/nowhere\0", device)
    module = host_driver().load(Host().compiled("").image, device)
    with pytest.raises(driver.DriverError, match="cuModuleGetFunction failed: named symbol not found"):
        module.launch("missing", (1, 1), 128, ())
    assert host_driver()._library.contexts_left() == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_on_a_gpu_are_those_on_the_cpu(dtype, attempts):
    t = torch.linspace(0, 1, 32, dtype=dtype)
    rates = torch.linspace(0.5, 1.5, 1000, dtype=dtype)
    y = 2 * torch.exp(-rates[:, None] * t)

    def residual(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return p[0] * torch.exp(p[1] * t) - y

    def solved(device: str) -> mslsq.Solution:
        start = torch.tensor([1.0, -1.0], dtype=dtype, device=device)
        given = (t.to(device), y.to(device))
        return mslsq.least_squares(residual, start, given, in_dims=(None, None, 0))

    there, here = solved("cuda"), solved("cpu")
    assert attempts[0].made is not None, attempts[0].why_not
    scale = 1e-7 if dtype == F64 else 1e-3
    torch.testing.assert_close(there.value.cpu(), here.value, rtol=scale, atol=scale)

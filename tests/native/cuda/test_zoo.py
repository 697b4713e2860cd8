"""Residuals of users, the library's factors and the alignment's cost as CUDA C, run by the processor: numbers of
PyTorch, whole and in parts, whatever the grid; and compiled by NVRTC, where it is installed."""

from typing import Any

import pytest
import torch

from mslsq.kernels.build import CompilerError
from mslsq.native.building import Written
from mslsq.native.cuda import programs
from mslsq.native.cuda.nvrtc import Nvrtc
from mslsq.native.cuda.programs import CudaMaking, Kernels
from mslsq.native.operator import NativeProgram
from tests.native.cuda.host import KERNEL, Host, found_nvrtc
from tests.native.functions import NEEDS_COMPILER

NEEDS_NVRTC = pytest.mark.skipif(
    found_nvrtc() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12, or MSLSQ_NVRTC"
)
RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-4}
"""To the largest number of an output: derivatives by transforms are sums that cancel, in another order."""
STATEMENTS = 60


def program_of(written: Written, tools: Host) -> tuple[NativeProgram, CudaMaking[Any]]:
    made = CudaMaking([written], tools)
    made.wait()
    found = made.programs()
    assert found is not None
    return found[0], made


def in_parts(source: str) -> dict[str, int]:
    """As if kernels of many statements spilled far more than their halves, which have nearly as many."""
    bodies = KERNEL.split(source)[1:]
    counts = {name: body.count(" const V v") for name, body in zip(bodies[::3], bodies[2::3], strict=True)}
    return {name: count**6 if count > STATEMENTS else 0 for name, count in counts.items()}


def computed(program: NativeProgram, drafted: Any) -> tuple[torch.Tensor, ...]:
    block, inputs = drafted.block, drafted.block.prepare(drafted.inputs)
    given = block.native_arguments(block.gather(drafted.values), inputs)
    residual, jacobian = program.linearizations(*given)
    assert torch.equal(program.residuals(*given), residual)
    return residual, jacobian


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", list(RELATIVE))
def test_numbers_are_those_of_pytorch(zoo, dtype):
    told = ""
    for name in zoo.ZOO:
        try:
            drafted = zoo.drafted(name, dtype)
        except CompilerError as error:
            assert name == "ConstantVelocity" and "operations of scalars" in str(error)
            continue
        program, _ = program_of(drafted.written, Host())
        expected = drafted.block.linearizations(drafted.values, drafted.block.prepare(drafted.inputs))
        for found, right in zip(computed(program, drafted), expected, strict=True):
            error = float((found - right).abs().max() / right.abs().max())
            if not error <= RELATIVE[dtype]:
                told += f"{name}: {error}\n"
    assert not told, told


@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["Between, SE2", pytest.param("own projection", marks=pytest.mark.slow)])
@pytest.mark.sampled(1)
def test_a_program_in_parts_has_the_bits_of_the_whole(zoo, name):
    drafted = zoo.drafted(name, torch.float64)
    whole, _ = program_of(drafted.written, Host())
    parts, made = program_of(drafted.written, Host(in_parts))
    assert len(made.build.resources) > 2  # kernels: of the residual, and of the parts of the linearization
    for one, other in zip(computed(whole, drafted), computed(parts, drafted), strict=True):
        assert torch.equal(one, other)


@NEEDS_COMPILER
def test_a_thread_has_several_lanes_where_the_grid_ends(zoo, monkeypatch):
    drafted = zoo.drafted("Between, SE2", torch.float64)
    program, _ = program_of(drafted.written, Host())
    block = drafted.block
    tensors, _, _, lanes = block.native_arguments(block.gather(drafted.values), block.prepare(drafted.inputs))
    problems, lanes = 3, 500
    many = [x[..., torch.arange(lanes) % x.shape[-1]].expand(problems, *x.shape[:-1], lanes) for x in tensors]
    many = [x * (1 + torch.arange(problems)[:, None, None] * 0.1) for x in many]
    given = many, [True] * len(many), problems, lanes
    expected = program.linearizations(*given)
    monkeypatch.setattr(programs, "LARGEST_GRID", (2, 2))
    for one, other in zip(program.linearizations(*given), expected, strict=True):
        assert torch.equal(one, other)
    each = [program.linearizations([x[p] for x in many], [False] * len(many), 1, lanes) for p in range(problems)]
    for k, one in enumerate(expected):
        assert torch.equal(one, torch.cat([parts[k] for parts in each]))


@NEEDS_COMPILER
def test_tensors_of_any_layout_are_read(zoo):
    """Strided lanes and entries, and inputs that all lanes share."""
    drafted = zoo.drafted("own peaks, 32 points", torch.float64)
    program, _ = program_of(drafted.written, Host())
    block = drafted.block
    tensors, batched, outer, lanes = block.native_arguments(block.gather(drafted.values), block.prepare(drafted.inputs))
    expected = program.linearizations(tensors, batched, outer, lanes)
    wide = [torch.stack((x, x + 1), -1)[..., 0] for x in tensors]
    for one, other in zip(program.linearizations(wide, batched, outer, lanes), expected, strict=True):
        assert torch.equal(one, other)


@NEEDS_COMPILER
def test_no_lanes_are_no_launch(zoo):
    drafted = zoo.drafted("Between, SE2", torch.float64)
    program, _ = program_of(drafted.written, Host())
    block = drafted.block
    tensors, batched, outer, _ = block.native_arguments(block.gather(drafted.values), block.prepare(drafted.inputs))
    assert program.residuals([x[..., :0] for x in tensors], batched, outer, 0).shape == (1, 3, 0)


def nvrtc_of_tests() -> Nvrtc:
    found = found_nvrtc()
    assert found is not None
    return found


@pytest.mark.slow
@NEEDS_NVRTC
def test_nvrtc_compiles_every_program(zoo):
    capability = 90
    for row in zoo.rows(capability):
        assert "no program" not in str(row[2]) or row[0] == "ConstantVelocity", row


@NEEDS_NVRTC
@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.slow), torch.float32])
def test_machine_code_and_ptx_of_a_program(zoo, dtype):
    drafted = zoo.drafted("Between, SE2", dtype)
    kernels = Kernels.of([drafted.written], zoo.ForArchitecture(90))
    told = kernels.compiled.resources
    assert set(told) == {"program0_residuals_0", "program0_linearizations_0"}
    assert all(0 < one.registers < 128 and one.spilled < 64 for one in told.values())
    assert kernels.compiled.image.startswith(b"\x7fELF")
    for capability, ptx in ((90, True), (10_000, False)):  # a GPU newer than NVRTC gets PTX
        text = nvrtc_of_tests().compiled(kernels.source, capability, ptx).image.decode()
        assert ".entry program0_linearizations_0" in text


@NEEDS_NVRTC
def test_no_product_is_fused_with_a_sum():
    """Functions of CUDA's own fuse where they say so; a program does nowhere."""
    text = 'extern "C" __global__ void k(double* x) { x[0] = x[0] * x[1] + x[2]; }'
    made = nvrtc_of_tests().compiled(text, 90, ptx=True).image.decode()
    assert "mul" in made and "fma" not in made


@NEEDS_NVRTC
def test_what_nvrtc_refuses_is_said(zoo):
    with pytest.raises(CompilerError, match=r"NVRTC .* failed: program.cu\(1\): error"):
        nvrtc_of_tests().compiled("nothing;", 90)
    with pytest.raises(CompilerError, match="no GPU as old"):
        nvrtc_of_tests().compiled("", 10)

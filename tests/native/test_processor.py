"""For which processor programs are compiled."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch

from mslsq.kernels.build import targets
from mslsq.native import processor

CPUINFO = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


def test_the_instruction_set_is_the_one_that_pytorch_uses_and_the_processor_has(monkeypatch):
    monkeypatch.delenv("MSLSQ_TARGET", raising=False)
    found = processor.target()
    assert found in targets() and torch.backends.cpu.get_cpu_capability().startswith(
        {"baseline": "", "avx2": "AVX2", "avx512": "AVX512"}[found]
    )
    if found != "baseline" and CPUINFO:
        assert {"avx2": "avx2", "avx512": "avx512vl"}[found] in CPUINFO.split()


@pytest.mark.parametrize("name", list(targets()))
def test_another_one_can_be_named_if_the_processor_has_it(name, monkeypatch):
    monkeypatch.delenv("MSLSQ_TARGET", raising=False)
    order = list(targets())
    best = order.index(processor.target())
    monkeypatch.setenv("MSLSQ_TARGET", name)
    if order.index(name) <= best:
        assert processor.target() == name
    else:
        with pytest.raises(ValueError, match="the best that this processor has"):
            processor.target()


def test_an_unknown_one_is_an_error(monkeypatch):
    monkeypatch.setenv("MSLSQ_TARGET", "avx1024")
    with pytest.raises(ValueError, match="MSLSQ_TARGET=avx1024"):
        processor.target()


WIDTH = """
constexpr int bytes() {
#if defined(__AVX512F__)
    return 64;
#elif defined(__AVX2__) && defined(__FMA__)
    return 32;
#else
    return 16;
#endif
}
"""


@pytest.mark.parametrize("name", list(targets()))
def test_the_compiler_is_told_of_registers_of_the_width_that_is_promised(name, cxx, tmp_path):
    source = tmp_path / "width.cpp"
    source.write_text(f"{WIDTH}static_assert(bytes() == {processor.VECTOR_BYTES[name]});")
    subprocess.run([*cxx, *processor.options(cxx, name), str(source), "-o", str(tmp_path / "width.so")], check=True)


ROOT_OF_A_DIFFERENCE = """
extern "C" __attribute__((visibility("default"))) double difference(double a, double b) { return a * a - b * b; }
"""


def test_products_are_rounded_before_they_are_subtracted_as_in_pytorch(cxx, tmp_path):
    """Fused, 0.1² − 0.1² is −1e-18: a square root of it is NaN."""
    source, library = tmp_path / "difference.cpp", tmp_path / "difference.so"
    source.write_text(ROOT_OF_A_DIFFERENCE)
    subprocess.run([*cxx, *processor.options(cxx, processor.target()), str(source), "-o", str(library)], check=True)
    difference = ctypes.CDLL(str(library)).difference
    difference.restype, difference.argtypes = ctypes.c_double, [ctypes.c_double] * 2
    assert difference(0.1, 0.1) == 0


def test_another_version_of_a_compiler_is_another_compiler(tmp_path):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    before = processor.identity([str(script), "-v"])
    assert processor.identity([str(script), "-v"]) == before != processor.identity([str(script)])
    os.utime(script, ns=(0, 1))
    assert processor.identity([str(script), "-v"]) != before


def test_the_model_is_that_of_the_first_core():
    assert processor.model() == processor.model() and "\n" not in processor.model()
    named = [line for line in CPUINFO.splitlines() if line.startswith("model name")]
    if named:
        assert named[0].partition(": ")[2] in processor.model()

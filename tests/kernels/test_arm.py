"""The kernels compiled for ARM (NEON) and run under emulation: every call of a few solves, on the same arrays.

Needs a cross-compiler and QEMU (Debian: apt install g++-aarch64-linux-gnu qemu-user-static).
"""

import ctypes
import shutil
import struct
import subprocess

import numpy as np
import pytest
import torch

import mslsq
from mslsq.kernels import library
from mslsq.kernels.build import FLAGS, SOURCE

COMPILER = shutil.which("aarch64-linux-gnu-g++") or ""
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""

pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR), reason="needs g++-aarch64-linux-gnu and qemu-user-static to run the kernels for ARM"
)

# Reads calls from a file, makes them, and writes all arrays as they are afterwards. Integers and addresses are passed
# alike, so one signature serves all kernels.
DRIVER = """
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
using word = std::int64_t;
DECLARATIONS
static void* named(const std::string& name) {
    TABLE
    return nullptr;
}
static word read_word(FILE* f) { word w; if (std::fread(&w, 8, 1, f) != 1) return -1; return w; }
int main(int, char** paths) {
    FILE *in = std::fopen(paths[1], "rb"), *out = std::fopen(paths[2], "wb");
    for (word length; (length = read_word(in)) >= 0;) {
        std::string name(length, 0);
        if (std::fread(&name[0], 1, length, in) != size_t(length)) return 3;
        word a[32] = {};
        std::vector<std::vector<word>> arrays(32);
        const word count = read_word(in);
        for (word k = 0; k < count; k++) {
            const word bytes = read_word(in);
            if (bytes < 0) { a[k] = read_word(in); continue; }
            const word offset = read_word(in);
            arrays[k].resize(bytes / 8 + 16);
            if (bytes && std::fread(arrays[k].data(), 1, bytes, in) != size_t(bytes)) return 3;
            a[k] = word(arrays[k].data()) + offset;
            arrays[k].back() = bytes;
        }
        void* function = named(name);
        if (!function) { std::fprintf(stderr, "no %s\\n", name.c_str()); return 2; }
        using Call = void (*)(ARGUMENTS);
        reinterpret_cast<Call>(function)(GIVEN);
        for (word k = 0; k < count; k++)
            if (arrays[k].size()) std::fwrite(arrays[k].data(), 1, arrays[k].back(), out);
    }
    return std::fclose(out);
}
"""
MOST_ARGUMENTS = 24


class Tape:
    """Calls of kernels: their arrays before and after."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int | tuple[int, bytes]], list[np.ndarray]]] = []

    def record(self, kernel: library.Kernel, arguments: tuple) -> None:
        real = None if kernel._real is None else arguments[kernel._real].dtype
        before = [a if kind == "n" else memory(a) for kind, a in zip(kernel.arguments, arguments, strict=True)]
        ORIGINAL(kernel, *arguments)
        after = [
            np.frombuffer(memory(a)[1], dtype_of(kind, real))
            for kind, a in zip(kernel.arguments, arguments, strict=True)
            if kind != "n"
        ]
        self.calls.append((f"mslsq_{kernel.name}_{'any' if real is None else library.REAL[real]}_neon", before, after))

    def bytes(self) -> bytes:
        parts = []
        for name, before, _ in self.calls:
            parts += [struct.pack("<q", len(name)), name.encode(), struct.pack("<q", len(before))]
            for argument in before:
                if isinstance(argument, tuple):
                    parts += [struct.pack("<qq", len(argument[1]), argument[0]), argument[1]]
                else:
                    parts.append(struct.pack("<qq", -1, int(argument)))
        return b"".join(parts)


ORIGINAL = library.Kernel.__call__


def memory(array: torch.Tensor | np.ndarray) -> tuple[int, bytes]:
    """The offset of an array in the memory that it is a view of, and that memory."""
    if isinstance(array, np.ndarray):
        return 0, array.tobytes()
    storage = array.untyped_storage()
    return int(array.storage_offset()) * array.itemsize, ctypes.string_at(storage.data_ptr(), storage.nbytes())


def dtype_of(kind: str, real: torch.dtype | np.dtype | None) -> np.dtype:
    if kind in "TS":
        return np.dtype(np.float64 if library.REAL[real] == "f64" else np.float32)
    return next(d for d in library.ARRAYS[kind] if isinstance(d, np.dtype))


def solve_something(dtype: torch.dtype) -> None:
    """A pose graph by the sparse factorisation, points and cameras by a Schur complement and by conjugate gradients.

    All of them damped well: what is nearly singular magnifies the last bits, in which processors differ.
    """
    torch.manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE3, count=90)
    i = torch.arange(89)
    graph = mslsq.Problem(
        mslsq.Between(pose[i], pose[i + 1], measured=mslsq.SE3.exp(0.3 * torch.randn(89, 6, dtype=dtype))),
        mslsq.Between(
            pose[i[:80]], pose[i[:80] + 9], measured=mslsq.SE3.exp(torch.randn(80, 6, dtype=dtype)), name="loops"
        ),
    )
    start = {"pose": mslsq.SE3.exp(torch.randn(90, 6, dtype=dtype))}
    sparse = mslsq.LevenbergMarquardt(linear_solver=mslsq.linear.SparseCholesky(), max_steps=2, initial_damping=1e-2)
    mslsq.solve(graph, start, solver=sparse)

    camera, point = (
        mslsq.Variable("camera", mslsq.Euclidean(9), count=5),
        mslsq.Variable("point", mslsq.Euclidean(3), count=30),
    )

    @mslsq.cost
    def seen(c, p, *, seen_at):
        return torch.stack((c[:3] @ p + c[6] * p[0] ** 2, c[3:6] @ p + c[7] * c[8])) - seen_at

    # some points are seen from the same cameras
    i = torch.cat((torch.randint(5, (80,)), torch.arange(5).repeat(24)))
    j = torch.cat((torch.randint(24, 30, (80,)), torch.arange(24).repeat_interleave(5)))
    adjustment = mslsq.Problem(
        seen(camera[i], point[j], seen_at=torch.randn(200, 2, dtype=dtype)),
        mslsq.Prior(camera, target=torch.zeros(5, 9, dtype=dtype)),
        mslsq.Prior(point, target=torch.ones(30, 3, dtype=dtype), name="points"),
    )
    start = {"camera": torch.randn(5, 9, dtype=dtype), "point": torch.randn(30, 3, dtype=dtype)}
    for linear in (mslsq.linear.Schur(), mslsq.linear.ConjugateGradient()):
        solver = mslsq.LevenbergMarquardt(linear_solver=linear, max_steps=1, initial_damping=1e-2)
        mslsq.solve(adjustment, start, solver=solver)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_call_gives_on_arm_what_it_gives_here(dtype, tmp_path, monkeypatch):
    tape = Tape()
    monkeypatch.setattr(library.Kernel, "__call__", lambda kernel, *arguments: tape.record(kernel, arguments))
    solve_something(dtype)
    monkeypatch.undo()
    names = sorted({name for name, _, _ in tape.calls})
    assert {"multifrontal_factor", "multifrontal_solve", "schur_reduce", "schur_back", "normal_equations"} <= {
        name.removeprefix("mslsq_").rsplit("_", 2)[0] for name in names
    }
    driver = (
        DRIVER.replace("DECLARATIONS", "\n".join(f'extern "C" void {name}();' for name in names))
        .replace("TABLE", "\n".join(f'if (name == "{n}") return reinterpret_cast<void*>({n});' for n in names))
        .replace("ARGUMENTS", ", ".join(["word"] * MOST_ARGUMENTS))
        .replace("GIVEN", ", ".join(f"a[{k}]" for k in range(MOST_ARGUMENTS)))
    )
    (tmp_path / "driver.cpp").write_text(driver)
    sources = [path for path in SOURCE.glob("*.cpp") if path.name != "dispatch.cpp"]
    options = [flag for flag in FLAGS if flag != "-O3"] + ["-O1", "-DMSLSQ_TARGET=neon", "-static"]
    given = [str(path) for path in (*sources, tmp_path / "driver.cpp")]
    subprocess.run([COMPILER, *options, *given, "-o", str(tmp_path / "driver")], check=True)
    (tmp_path / "tape").write_bytes(tape.bytes())
    subprocess.run([EMULATOR, str(tmp_path / "driver"), str(tmp_path / "tape"), str(tmp_path / "out")], check=True)

    out, at = (tmp_path / "out").read_bytes(), 0
    tolerance = 1e-11 if dtype == torch.float64 else 2e-3
    for name, _, after in tape.calls:
        for expected in after:
            got = np.frombuffer(out, expected.dtype, len(expected), at)
            at += expected.nbytes
            if expected.dtype.kind == "f":
                scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-300)
                same = np.isclose(got, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            else:
                same = got == expected
            assert same.all(), f"{name}: {(~same).sum()} of {same.size} numbers differ"
    assert at == len(out)

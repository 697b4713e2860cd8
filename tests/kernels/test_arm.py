"""The kernels compiled for ARM (NEON) and run under emulation: calls of solves and alignments, on the same arrays.

Needs a cross-compiler and QEMU (Debian: apt install g++-aarch64-linux-gnu qemu-user-static).
"""

import ctypes
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import mslsq
from mslsq.alignment import align
from mslsq.alignment.synthetic import base_raster
from mslsq.kernels import library
from mslsq.kernels.build import FLAGS, SOURCE
from mslsq.linear.schur import by_kernels
from mslsq.linear.schur.tables import SchurTables

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

    def __init__(self, most: int) -> None:
        self.calls: list[tuple[str, list[int | tuple[int, bytes]], list[np.ndarray], dict[int, np.ndarray]]] = []
        self.most = most  # of each kernel: an alignment makes a thousand calls
        self.plan: SchurTables | None = None

    def reduction(self, values: torch.Tensor, plan: SchurTables) -> tuple[torch.Tensor, ...]:
        """Where `schur_reduce` writes to. Nothing reads the upper halves of the matrix's diagonal blocks, and which
        numbers they get depends on the registers."""
        self.plan = plan
        return REDUCTION(values, plan)

    def unread(self, size: int) -> np.ndarray:
        """Places of a reduced matrix that are not read."""
        places = np.zeros(size, bool)
        for group in self.plan.kept if self.plan else ():
            row, column = np.triu_indices(group.height, 1)
            if group.is_diagonal:
                places[(group.target[:, None] + group.stride[:, None] * row + column).ravel()] = True
        return places

    def record(self, kernel: library.Kernel, arguments: tuple) -> None:
        real = None if kernel._real is None else arguments[kernel._real].dtype
        name = f"mslsq_{kernel.name}_{'any' if real is None else library.REAL[real]}_neon"
        if sum(known == name for known, *_ in self.calls) >= self.most:
            ORIGINAL(kernel, *arguments)
            return
        before = [a if kind == "n" else memory(a) for kind, a in zip(kernel.arguments, arguments, strict=True)]
        ORIGINAL(kernel, *arguments)
        after = [
            np.frombuffer(memory(a)[1], dtype_of(kind, real))
            for kind, a in zip(kernel.arguments, arguments, strict=True)
            if kind != "n"
        ]
        ignored = {6: self.unread(len(after[6]))} if kernel.name == "schur_reduce" else {}
        self.calls.append((name, before, after, ignored))

    def bytes(self) -> bytes:
        parts = []
        for name, before, *_ in self.calls:
            parts += [struct.pack("<q", len(name)), name.encode(), struct.pack("<q", len(before))]
            for argument in before:
                if isinstance(argument, tuple):
                    parts += [struct.pack("<qq", len(argument[1]), argument[0]), argument[1]]
                else:
                    parts.append(struct.pack("<qq", -1, int(argument)))
        return b"".join(parts)


ORIGINAL, REDUCTION = library.Kernel.__call__, by_kernels._reduction


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


def align_something(dtype: torch.dtype) -> None:
    """Two pairs of maps, one with holes, one in colours, by every metric that needs no weights."""
    base = torch.from_numpy(base_raster("camera")).to(dtype)[100:228, 180:330]
    holes = base[8:, 5:].clone()
    holes[30:36, 40:52] = torch.nan
    colours = torch.stack((base, base**1.3, 1 - base))
    for reference, moving in ((base[:-9, :-6], holes), (colours[:, :-9, :-6], colours[:, 8:, 5:])):
        for metric in ("squared", "gradients", "local", "occupancy"):
            align([reference, moving], model="se2", metric=metric)


SOLVING = ("multifrontal_factor", "multifrontal_solve", "schur_reduce", "schur_back", "normal_equations")
ALIGNING = ("survey", "pyramid", "masked_blur", "spline_filter", "spline_at", "photometric_descent", "warped_samples")

ACCURACY = {
    "both_deviations": 1e-6,  # sums up detail in single precision
    "photometric_descent": 1e-7,  # says by how much a step shortens the way: a quotient of small differences
}
"""Of the numbers in float64 that a kernel finds, where that is not rounding of float64."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for ARM that makes the calls of a tape: compiled once, which takes most of the time."""
    folder = tmp_path_factory.mktemp("arm")
    sources = [path for path in SOURCE.glob("*.cpp") if path.name != "dispatch.cpp"]
    exported = re.findall(r"MSLSQ_EXPORT\((\w+), (\w+)\)", "".join(path.read_text() for path in sources))
    names = [
        f"mslsq_{name}_{real}_neon"
        for name, kind in exported
        for real in (("f64", "f32") if kind == "type" else (kind,))
    ]
    (folder / "driver.cpp").write_text(
        DRIVER.replace("DECLARATIONS", "\n".join(f'extern "C" void {name}();' for name in names))
        .replace("TABLE", "\n".join(f'if (name == "{n}") return reinterpret_cast<void*>({n});' for n in names))
        .replace("ARGUMENTS", ", ".join(["word"] * MOST_ARGUMENTS))
        .replace("GIVEN", ", ".join(f"a[{k}]" for k in range(MOST_ARGUMENTS)))
    )
    options = [flag for flag in FLAGS if flag != "-O3"] + ["-O1", "-DMSLSQ_TARGET=neon", "-static"]
    given = [str(path) for path in (*sources, folder / "driver.cpp")]
    subprocess.run([COMPILER, *options, *given, "-o", str(folder / "driver")], check=True)
    return folder / "driver"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "needed", "dtype"),
    [
        (solve_something, SOLVING, torch.float64),
        (solve_something, SOLVING, torch.float32),
        (align_something, ALIGNING, torch.float64),  # of maps in float32, too, all but a first look is done in float64
    ],
)
def test_every_call_gives_on_arm_what_it_gives_here(work, needed, dtype, driver, tmp_path, monkeypatch):
    tape = Tape(most=6)
    monkeypatch.setattr(library.Kernel, "__call__", lambda kernel, *arguments: tape.record(kernel, arguments))
    monkeypatch.setattr(by_kernels, "_reduction", tape.reduction)
    work(dtype)
    monkeypatch.undo()
    called = {name.removeprefix("mslsq_").rsplit("_", 2)[0] for name, *_ in tape.calls}
    assert set(needed) <= called
    (tmp_path / "tape").write_bytes(tape.bytes())
    subprocess.run([EMULATOR, str(driver), str(tmp_path / "tape"), str(tmp_path / "out")], check=True)

    out, at, wrong = (tmp_path / "out").read_bytes(), 0, []
    for name, _, after, ignored in tape.calls:
        doubles = ACCURACY.get(name.removeprefix("mslsq_").rsplit("_", 2)[0], 1e-11)
        for place, expected in enumerate(after):
            tolerance = doubles if dtype == torch.float64 and expected.dtype == np.float64 else 2e-3
            got = np.frombuffer(out, expected.dtype, len(expected), at)
            at += expected.nbytes
            if expected.dtype.kind == "f":
                scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-300)
                same = np.isclose(got, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            else:
                same = got == expected
            same |= ignored.get(place, False)
            if not same.all():
                wrong.append(f"{name}, array {place}: {(~same).sum()} of {same.size} numbers differ")
    assert not wrong, "\n".join(wrong)
    assert at == len(out)

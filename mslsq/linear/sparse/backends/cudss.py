"""cuDSS 1.0 on CUDA (NVIDIA's; closed and free to use): all matrices of a batch in one factorisation.

**It has never run on a GPU.** Without one it runs with a library in its place that has the same functions, and factors
densely (`tests/linear/sparse/test_cudss.py`). So `"auto"` takes it only where `make cuda` has seen it agree with dense
factors and be faster than those (`cudss_proof`), and whole batches only where they were faster than one by one.
"""

import contextlib
import ctypes
import weakref
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.linear.sparse.backends import cudss_library as names
from mslsq.linear.sparse.backends.analysis import Lower, missing
from mslsq.linear.sparse.backends.cudss_library import Cudss, cudss
from mslsq.linear.sparse.backends.cudss_proof import is_proved

DEVICE = "cuda"

KEPT = 2
"""Sizes of batches that are kept planned: as problems of a batch end it becomes smaller, by halves."""


def is_taken() -> bool:
    """Does `"auto"` take it? There are a GPU and cuDSS, and on that GPU it has proved itself."""
    return torch.cuda.is_available() and is_installed() and is_proved("alone", torch.device("cuda"))


def is_installed() -> bool:
    """Can cuDSS be loaded?"""
    try:
        cudss()
    except ImportError:
        return False
    return True


def require_cudss() -> None:
    """BackendMissingError where cuDSS is missing."""
    try:
        cudss()
    except ImportError as error:
        raise missing("cudss") from error


class Factorization:
    """Symmetric positive definite, the upper triangle by rows, which is the lower one by columns; float64.

    Args:
        together: are the matrices of a batch factored in one call? By default where that has proved itself.
    """

    def __init__(self, lower: Lower, device: torch.device, together: bool | None = None):
        if device.type != DEVICE:
            raise ValueError(
                f"SparseCholesky(backend='cudss') solves on CUDA devices, and this problem is on {device}: move it "
                "there, or take backend='auto', which has the fastest for each device."
            )
        self._together = is_proved("together", device) if together is None else together
        self._size, self._device, self._library = lower.size, device, cudss()
        self._indptr, self._columns = (torch.from_numpy(x).to(device, torch.int32) for x in (lower.indptr, lower.rows))
        self._identity = torch.zeros(len(lower.rows), dtype=torch.float64, device=device)
        self._identity[self._indptr[:-1].long()] = 1.0  # the diagonal: the first of every row
        self._plans: dict[int, _Plan] = {}

    def solve(
        self, entries: Float[Tensor, "batch entries"], rhs: Float[Tensor, "batch size k"]
    ) -> tuple[Float[Tensor, "batch size k"], Bool[Tensor, "batch"]]:
        """A⁻¹ rhs, and which matrices have a Cholesky factor; what belongs to others means nothing."""
        if self._together and len(entries) > 1:
            return self._solved_together(entries, rhs)
        return self._solved_alone(entries, rhs)

    def _solved_alone(self, entries: Tensor, rhs: Tensor) -> tuple[Tensor, Bool[Tensor, "batch"]]:
        plan, solution, definite = self._plan(1), torch.full_like(rhs, torch.nan), []
        for k in range(len(entries)):
            definite.append(plan.factor(entries[k : k + 1]))
            if definite[-1]:
                solution[k : k + 1] = plan.solve(rhs[k : k + 1])
        return solution, torch.tensor(definite, device=rhs.device)

    def _solved_together(self, entries: Tensor, rhs: Tensor) -> tuple[Tensor, Bool[Tensor, "batch"]]:
        """In one call. Where that finds a pivot that is not positive, in whichever matrix, each is factored alone to
        know which they are; the identity takes their places, so that they harm no other."""
        plan = self._plan(1 << (len(entries) - 1).bit_length())
        definite = torch.ones(len(entries), dtype=torch.bool, device=rhs.device)
        if not plan.factor(entries):
            alone = self._plan(1)
            found = [alone.factor(entries[k : k + 1]) for k in range(len(entries))]
            definite = torch.tensor(found, device=rhs.device)
            if not plan.factor(torch.where(definite[:, None], entries, self._identity)):
                return self._solved_alone(entries, rhs)
        return plan.solve(rhs), definite

    def _plan(self, capacity: int) -> "_Plan":
        plan = self._plans.pop(capacity, None)
        if plan is None:
            plan = _Plan(self._library, self._indptr, self._columns, self._identity, capacity)
        while len(self._plans) >= KEPT:
            del self._plans[next(iter(self._plans))]  # the one that was not used for longest
        self._plans[capacity] = plan
        return plan


class _Plan:
    """An analysis for `capacity` matrices of one structure, and their places on the device. It belongs to these
    places: what is to be factored or solved is copied there; what is left over are identities."""

    def __init__(
        self,
        library: Cudss,
        indptr: Int[Tensor, "size+1"],
        columns: Int[Tensor, "entries"],
        identity: Float[Tensor, "entries"],
        capacity: int,
    ):
        self._library, self._device, self._identity = library, identity.device, identity
        self._indices = indptr, columns  # read by cuDSS
        size = len(indptr) - 1
        self._entries = identity.repeat(capacity, 1)
        self._rhs, self._solution = identity.new_zeros(2, capacity, size).unbind()
        csr = (names.INT32, names.INT32, names.FLOAT64, names.POSITIVE_DEFINITE, names.UPPER, names.FROM_ZERO)
        dense = size, 1, size
        with _on(self._device), contextlib.ExitStack() as made:

            def keep(thing: ctypes.c_void_p, name: str, *owner: Any) -> ctypes.c_void_p:
                made.callback(library.call, name, *owner, thing)
                return thing

            handle = keep(library.made("cudssCreate"), "cudssDestroy")
            config = keep(library.made("cudssConfigCreate"), "cudssConfigDestroy")
            if capacity > 1:
                count = ctypes.c_int(capacity)
                library.call("cudssConfigSet", config, names.BATCH_SIZE, ctypes.byref(count), ctypes.sizeof(count))
            self._data = keep(library.made_of("cudssDataCreate", handle), "cudssDataDestroy", handle)
            places = indptr.data_ptr(), None, columns.data_ptr(), self._entries.data_ptr()
            matrix = library.made("cudssMatrixCreateCsr", size, size, len(columns), *places, *csr)
            keep(matrix, "cudssMatrixDestroy")
            solution, rhs = (
                keep(library.made("cudssMatrixCreateDn", *dense, x.data_ptr(), 1, 0), "cudssMatrixDestroy")
                for x in (self._solution, self._rhs)
            )
            self._handle, self._operands = handle, (config, self._data, matrix, solution, rhs)
            self._execute(names.ANALYSIS)
            weakref.finalize(self, _freed, self._device, made.pop_all())

    def factor(self, entries: Float[Tensor, "batch entries"]) -> bool:
        """Are all positive definite? The answer waits for the device."""
        self._entries[: len(entries)].copy_(entries)
        self._entries[len(entries) :].copy_(self._identity)
        self._execute(names.FACTORIZATION)
        info, written = ctypes.c_int(), ctypes.c_size_t()
        about = self._handle, self._data, names.INFO, ctypes.byref(info), ctypes.sizeof(info)
        self._library.call("cudssDataGet", *about, ctypes.byref(written))
        if info.value == 0:
            return True
        info.value = 0
        self._library.call("cudssDataSet", *about)
        return False

    def solve(self, rhs: Float[Tensor, "batch size k"]) -> Float[Tensor, "batch size k"]:
        """With the last factors."""
        solutions = []
        for column in rhs.unbind(2):  # the number of right-hand sides is part of the plan: one
            self._rhs[: len(rhs)].copy_(column)
            self._execute(names.SOLVE)
            solutions.append(self._solution[: len(rhs)].clone())
        return torch.stack(solutions, 2)

    def _execute(self, phase: int) -> None:
        with _on(self._device) as stream:
            self._library.call("cudssSetStream", self._handle, stream)
            self._library.call("cudssExecute", self._handle, phase, *self._operands)


@contextlib.contextmanager
def _on(device: torch.device) -> Any:
    """The device is that of this thread; the stream in which PyTorch works there."""
    if device.type != "cuda":
        yield None
        return
    with torch.cuda.device(device):
        yield ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)


def _freed(device: torch.device, made: contextlib.ExitStack) -> None:
    with _on(device):
        made.close()

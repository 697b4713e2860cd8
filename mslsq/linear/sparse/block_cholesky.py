"""Block-sparse Cholesky A = L Lᵀ of symmetric positive definite matrices that share one structure, on the CPU.

>>> import numpy as np
>>> from mslsq.linear.block_structure import analyze
>>> structure = analyze(np.array([2, 2]), rows=np.array([1]), cols=np.array([0]))
>>> values = np.zeros((1, structure.num_values))  # blocks (0, 0), (1, 0), (1, 1), each by rows
>>> values[:, structure.diagonal_index] = 4.0
>>> offset, transposed = structure.offset_of(1, 0)
>>> values[0, offset : offset + 4] = [1.0, 0.0, 0.0, 1.0]
>>> factored = factor(structure, values)
>>> solve(factored, np.ones((1, 4, 1)))[0, :, 0].round(3).tolist()
[0.2, 0.2, 0.2, 0.2]

Arrays are NumPy's; `tensor.detach().numpy()` and `torch.from_numpy` share memory with them. The kernels are C++,
compiled when the package is installed (`mslsq.kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray

from mslsq.kernels import in_parts
from mslsq.linear.block_products import symmetric_product, tables_on
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.sparse import multifrontal

Values = Float[ndarray, "batch values"]
Vectors = Float[ndarray, "batch unknowns rhs"]


@dataclass(frozen=True, eq=False)
class Factor:
    """The Cholesky factors of a batch; `ok[b]` is False where entry b has a pivot that is not positive and finite."""

    structure: BlockStructure
    ok: Bool[ndarray, "batch"]
    entries: Float[ndarray, "batch factor"]


def factor(
    structure: BlockStructure,
    values: Values,
    diagonal_shift: Float[ndarray, "batch unknowns"] | None = None,
    threads: int = 1,
    out: Factor | None = None,
) -> Factor:
    """Factor A_b + diag(diagonal_shift_b) for every batch entry; float64 or float32, the dtype of `values`.

    An entry that is not positive definite, or not finite, is marked in `ok` and harms no other. `threads` share the
    batch; one matrix is always one thread's work. `out` is an earlier factor of the same structure, batch and
    dtype whose memory is overwritten (fresh pages cost as much as a tenth of the work).
    """
    values = _checked("values", values, (structure.num_values,))
    shift = np.empty((len(values), 0), values.dtype)
    if diagonal_shift is not None:
        shift = _checked("diagonal_shift", diagonal_shift, (structure.num_unknowns,), like=values)
    if (
        out is not None
        and out.structure is structure
        and out.entries.shape[0] == len(values)
        and out.entries.dtype == values.dtype
    ):
        entries = out.entries
    else:
        entries = np.empty((len(values), structure.factor_size), values.dtype)
    ok = np.zeros(len(values), np.bool_)
    in_parts(
        lambda a, b: multifrontal.factor(values, shift, entries, ok, a, b, structure._stack, structure._numeric),
        len(values),
        threads,
    )
    return Factor(structure, ok, entries)


def solve(factored: Factor, rhs: Vectors, threads: int = 1) -> Vectors:
    """A⁻¹ rhs for every batch entry, any number of right-hand sides; NaN where `ok` is False."""
    structure = factored.structure
    rhs = _checked("rhs", rhs, (structure.num_unknowns, None), like=factored.entries)
    out = np.empty_like(rhs)
    in_parts(
        lambda a, b: multifrontal.solve(
            factored.entries, factored.ok, rhs, out, a, b, structure._tallest, structure._triangular
        ),
        len(rhs),
        threads,
    )
    return out


def diagonal(structure: BlockStructure, values: Values) -> Float[ndarray, "batch unknowns"]:
    """The diagonal of every matrix."""
    return values[:, structure.diagonal_index]


def matvec(structure: BlockStructure, values: Values, x: Vectors) -> Vectors:
    """A x for every batch entry."""
    values = _checked("values", values, (structure.num_values,))
    x = _checked("x", x, (structure.num_unknowns, None), like=values)
    vectors = torch.from_numpy(x).mT.flatten(0, 1)
    y = symmetric_product(torch.from_numpy(values), vectors, *tables_on(structure, vectors.device))
    return np.ascontiguousarray(y.unflatten(0, (len(x), -1)).mT.numpy())


def _checked(name: str, array: ndarray, shape: tuple[int | None, ...], like: ndarray | None = None) -> ndarray:
    array = np.asarray(array)
    expected = ("batch", *("any" if s is None else s for s in shape))
    fits = array.ndim == len(expected) and all(
        s is None or s == given for s, given in zip(shape, array.shape[1:], strict=True)
    )
    if not fits or (like is not None and len(array) != len(like)):
        batch = "" if like is None else f" with a batch of {len(like)}"
        raise ValueError(f"{name}: expected shape {expected}{batch}, got {array.shape}")
    if array.dtype not in (np.float32, np.float64) or (like is not None and array.dtype != like.dtype):
        wanted = "float64 or float32" if like is None else f"{like.dtype}, like the matrix"
        raise TypeError(f"{name}: expected {wanted}, got {array.dtype}")
    return np.ascontiguousarray(array)

"""Parts of (JᵀJ)⁻¹ of a large problem, from the sparse factor, and what is missing where there is none."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq.diagnostics.located import Located, machine_epsilon
from mslsq.linear.block_structure import BlockStructure
from mslsq.linear.sparse.multifrontal import factor, solve
from mslsq.linear.stored_blocks import StoredBlocks

SHIFT = 1e-10
"""Added to the unit diagonal of a singular matrix to solve with it all the same."""

MOST_FREE = 16
"""Free directions that are counted at most."""


def marginals(
    point: Located, matrix: Float[Tensor, "batch values"], name: str, blocks: Int[Tensor, "blocks"]
) -> tuple[Float[Tensor, "batch blocks tangent tangent"], Bool[Tensor, "batch"], tuple[int, int]]:
    """The blocks, which entries of the batch are regular (the others are NaN), and for the first that is not the
    number of directions that are free and a column that moves in them."""
    assert point.pattern is not None  # only large problems come here
    number, chosen = list(point.problem.variables).index(name), blocks.cpu().numpy()
    own, moves = point.pattern.blocks[number][chosen], point.stated.system.unknowns[number].free_entries[chosen]
    found = _factorised(point, matrix)
    result = _blocks(found.structure, found.factors, found.regular, own, found.scale, moves)
    return _as_tensors(result, found, matrix)


def joint(
    point: Located, matrix: Float[Tensor, "batch values"], columns: Int[Tensor, "k"]
) -> tuple[Float[Tensor, "batch k k"], Bool[Tensor, "batch"], tuple[int, int]]:
    """The covariance of these columns together, none of them fixed; else as `marginals`."""
    found = _factorised(point, matrix)
    own = columns.cpu().numpy()
    unit = np.zeros((len(found.scaled), found.scaled_size, len(own)))
    unit[:, own, np.arange(len(own))] = 1
    usable = torch.from_numpy(found.regular)
    plan = found.structure.elimination.packed
    solved = solve(torch.from_numpy(found.factors), usable, torch.from_numpy(unit), *plan).numpy()[:, own]
    deviation = found.scale[:, own]
    result = (solved + solved.transpose(0, 2, 1)) / (2 * deviation[:, :, None] * deviation[:, None, :])
    result[~found.regular] = np.nan
    return _as_tensors(result, found, matrix)


class _Factorised(NamedTuple):
    """Normal equations scaled to a unit diagonal, and their factor."""

    structure: BlockStructure
    scale: np.ndarray
    scaled: np.ndarray
    factors: np.ndarray
    regular: np.ndarray
    lowest: float

    @property
    def scaled_size(self) -> int:
        return self.scale.shape[1]


def _as_tensors(result: np.ndarray, found: _Factorised, matrix: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    missing = (0, 0)
    if not found.regular.all():
        missing = _missing(found.structure, found.scaled[~found.regular][0], found.lowest)
    return torch.from_numpy(result).to(matrix), torch.from_numpy(found.regular).to(matrix.device), missing


def _factorised(point: Located, matrix: Float[Tensor, "batch values"]) -> _Factorised:
    from mslsq.linear.sparse.selected_inverse import squared_pivots  # loads scipy.linalg

    assert point.pattern is not None  # only large problems come here
    structure = point.pattern.structure
    values = matrix.detach().cpu().numpy().astype(np.float64)
    diagonal = values[:, structure.diagonal_index.cpu().numpy()]
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1))
    rows, columns = structure.places
    scaled = values / (scale[:, rows] * scale[:, columns])
    factors, regular = _factored(structure, scaled)
    lowest = _lowest(matrix, structure)
    sound = squared_pivots(structure, factors) > lowest
    regular = regular & (diagonal > 0).all(1) & sound.all(1)
    return _Factorised(structure, scale, scaled, factors, regular, lowest)


def _factored(structure: BlockStructure, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    factors, definite = factor(torch.from_numpy(values), torch.zeros(0, device="cpu"), *structure.elimination.packed)
    return factors.numpy(), definite.numpy()


def _blocks(
    structure: BlockStructure,
    factors: np.ndarray,
    regular: np.ndarray,
    own: np.ndarray,
    scale: np.ndarray,
    moves: np.ndarray,
) -> np.ndarray:
    """Marginal covariances; zero for what is held fixed, all but what `moves` (blocks, tangent)."""
    from mslsq.linear.sparse.selected_inverse import diagonal_blocks

    result = np.zeros((len(scale), *moves.shape, moves.shape[1]))
    free = np.flatnonzero(own >= 0)
    if len(free):
        for number, block in diagonal_blocks(structure, factors, regular, own[free]):
            places = np.flatnonzero(moves[free[number]])
            deviation = scale[:, structure.starts[own[free[number]]] + np.arange(len(places))]
            block = block / (deviation[:, :, None] * deviation[:, None, :])
            result[:, free[number], places[:, None], places] = block
    result[~regular] = np.nan
    return result


def _lowest(matrix: Tensor, structure: BlockStructure) -> float:
    """With a unit diagonal a squared pivot below this is rounding of what the columns before it explain."""
    return machine_epsilon(matrix) * max(int(structure.block_sizes.max()), 10) * 100


def _missing(structure: BlockStructure, scaled: np.ndarray, lowest: float) -> tuple[int, int]:
    """How many directions a singular matrix leaves free (up to `MOST_FREE`), and the unknown that moves most in them.

    Inverse iteration on a block of random vectors finds the eigenvectors of the smallest eigenvalues.
    """
    if not np.isfinite(scaled).all():
        return 0, 0
    count = min(MOST_FREE, structure.num_unknowns)
    plan, values = structure.elimination.packed, torch.from_numpy(scaled)[None]
    shift = values.new_full((1, structure.num_unknowns), max(SHIFT, 10 * lowest))
    shifted = factor(values, shift, *plan)
    if not shifted[1][0]:
        return 0, 0
    vectors = np.random.default_rng(0).normal(size=(structure.num_unknowns, count))
    for _ in range(3):
        vectors = np.linalg.qr(solve(*shifted, torch.from_numpy(vectors)[None], *plan)[0].numpy())[0]
    rows = torch.from_numpy(vectors).T.contiguous()
    small = vectors.T @ StoredBlocks(structure).product(values, rows).T.numpy()
    eigenvalues, turned = np.linalg.eigh((small + small.T) / 2)
    free = vectors @ turned[:, eigenvalues < lowest]
    return max(free.shape[1], 1), int((free**2).sum(1).argmax())

"""`bias="auto"`: the simplest bias model that predicts blocks it has not seen as well as any.

Residuals of neighbours are not independent, so an information criterion over pixels takes every wave of correlated
noise for a bias. Here whole blocks, twice the correlation length wide, are left out in five folds; the model is fitted
to the rest (linearised at the answer of the largest one, with its weights) and judged on them. Of the models whose mean
loss is within two standard errors of the best's, of the difference over blocks, the simplest is taken (after Hastie
et al., 2009, 7.10).
"""

import numpy as np
import torch
from jaxtyping import Float

from mslsq.alignment.dem.bias import CANDIDATES, Bias
from mslsq.alignment.dem.comparison import Comparison, Solved, weighted
from mslsq.alignment.dem.uncertainty import numbered

FOLDS = 5
ERRORS = 2.0
"""Standard errors: with one, a third of the pairs without a bias got one."""

LARGEST = Bias.named("quadratic+elevation")
"""Of the candidates: all others are within it."""


def choose(samples: Comparison, at: Solved, loss: str | None, scale: float, block: int) -> str:
    """The name of the model to use; `samples`, `at` and `scale` are those of a fit of `LARGEST`."""
    products = _block_products(samples, at, loss, scale, block)
    if len(products) < 2 * FOLDS:
        return "offset"
    losses = {
        name: _losses(products, [0, 1, *(2 + k for k in Bias.named(name).within(LARGEST))]) for name in CANDIDATES
    }
    best = min(losses.values(), key=lambda found: float(found.sum()))
    for name in CANDIDATES:
        excess = losses[name] - best
        error = float(excess.std(ddof=1)) * len(excess) ** 0.5
        if float(excess.sum()) <= ERRORS * error:
            return name
    return CANDIDATES[-1]


def _block_products(
    samples: Comparison, at: Solved, loss: str | None, scale: float, block: int
) -> Float[np.ndarray, "blocks n n"]:
    """Of every block [J y]ᵀ W [J y], with y what J times the unknowns has to explain: -r + J θ of the bias."""
    inverse = numbered(samples, block)
    side = len(at.bias) + 3
    sums = samples.target.new_zeros((int(inverse.max()) + 1, side, side))
    for part, residual, jacobian in samples.jacobians(at):
        _, weight, _ = weighted(residual, loss, scale)
        explained = jacobian[:, 2:] @ torch.from_numpy(at.bias) - residual
        both = torch.cat([jacobian, explained[:, None]], -1)
        heavy = both * weight[:, None]
        for column in range(side):  # one column at a time: all products of a chunk would be 300 MB
            sums[:, column].index_add_(0, inverse[part], both * heavy[:, column : column + 1])
    return sums.numpy()


def _losses(products: Float[np.ndarray, "blocks n n"], used: list[int]) -> Float[np.ndarray, " blocks"]:
    """The weighted squares of every block under the model fitted to the other folds."""
    fold = np.random.default_rng(0).permutation(len(products)) % FOLDS
    losses = np.zeros(len(products))
    chosen = products[:, [*used, -1]][:, :, [*used, -1]]
    for k in range(FOLDS):
        rest = chosen[fold != k].sum(0)
        answer = np.append(np.linalg.lstsq(rest[:-1, :-1], rest[:-1, -1], rcond=None)[0], -1.0)
        losses[fold == k] = np.einsum("i,bij,j->b", answer, chosen[fold == k], answer)
    return losses

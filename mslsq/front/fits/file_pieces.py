"""One piece of many fits: its rows are read, fitted as a batch, and written."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.front.curve_fit import curve_fit
from mslsq.front.fits.covariance import CovarianceWarning
from mslsq.front.fits.file_arrays import Results, Rows
from mslsq.front.fits.result import CurveFit
from mslsq.problem.errors import ProblemError
from mslsq.solution import Status


class Fits(NamedTuple):
    """What is fitted, row by row, and how."""

    model: Callable[[Any, Any], Tensor]
    t: Any
    y: Rows
    p0: Any
    sigma: Any
    dtype: torch.dtype
    options: dict[str, Any]

    def _made(self, take: Callable[[Rows], Tensor]) -> CurveFit:
        """A batch of fits whose rows `take` reads."""
        given = self.t, self.y, self.p0, self.sigma
        values = [take(one) if isinstance(one, Rows) else one for one in given]
        dims = tuple(0 if isinstance(one, Rows) else None for one in given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CovarianceWarning)  # infinite standard errors say it row by row
            return curve_fit(self.model, *values[:3], sigma=values[3], in_dims=dims, **self.options)

    def between(self, start: int, stop: int) -> CurveFit:
        """Those from start to stop."""
        return self._made(lambda rows: rows.read(start, stop, self.dtype))

    def probe(self, number: int) -> CurveFit:
        """Some fits from all over the file; the first of them that can be made, where they cannot all be.

        Raises:
            ProblemError: none can be made.
        """
        places = np.unique(np.linspace(0, self.y.shape[0] - 1, number).astype(int)).tolist()
        refused: list[ProblemError] = []
        for some in (places, *([place] for place in places)):
            try:
                return self._made(lambda rows, some=some: rows.picked(some, self.dtype))
            except ProblemError as error:
                refused.append(error)
        raise refused[0]


class Piece(NamedTuple):
    """A task of `mslsq.parallel`: the fits from start to stop, into the files."""

    fits: Fits
    results: Results

    def __call__(self, item: tuple[int, int]) -> dict[str, Any]:
        """How many fits ended with which status, and what was said of those that could not be made."""
        said: dict[str, int] = {}
        arrays = self._arrays(*item, said)
        self.results.write(item[0], arrays)
        statuses, counts = np.unique(arrays["status"], return_counts=True)
        by_status = {str(status): int(count) for status, count in zip(statuses, counts, strict=True)}
        return {"fits": item[1] - item[0], "statuses": by_status, "said": said}

    def _arrays(self, start: int, stop: int, said: dict[str, int]) -> dict[str, np.ndarray]:
        """Their results. Where the batch is refused for one of its fits, the others are made without that one."""
        try:
            return arrays_of(self.fits.between(start, stop))
        except ProblemError as error:
            if stop - start == 1:
                said[str(error)] = start
                return self.results.nothing(1)
        middle = (start + stop) // 2
        halves = self._arrays(start, middle, said), self._arrays(middle, stop, said)
        return {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}


def arrays_of(fit: CurveFit) -> dict[str, np.ndarray]:
    """A row per fit. Parameters and errors are NaN where there is no fit: data that are not finite, or fewer points
    than parameters."""
    solution, count = fit.solution, len(fit.solution.cost)
    value, errors = (
        torch.cat([leaf.reshape(count, -1) for leaf in pytree.leaves(tree)], 1)
        for tree in (fit.value, fit.standard_errors)
    )
    few = fit.num_points.reshape(-1).expand(count) < fit.num_parameters
    none = (few | (solution.status == Status.NON_FINITE))[:, None]
    found = {
        "parameters": torch.where(none, torch.nan, value),
        "standard_errors": torch.where(none, torch.nan, errors),
        "cost": torch.where(none[:, 0], torch.nan, solution.cost),
        "status": solution.status.to(torch.int8),
        "num_steps": solution.num_steps.to(torch.int32),
    }
    return {name: array.detach().numpy() for name, array in found.items()}

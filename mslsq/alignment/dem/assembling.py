"""The result that a user gets, of an answer or of none: metres, statistics before and after."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mslsq.alignment.dem.bias import Bias
from mslsq.alignment.dem.comparison import Pyramids
from mslsq.alignment.dem.pair import Pair
from mslsq.alignment.dem.result import Coregistration, CoregistrationStatus, corrected, on_grid, shifted
from mslsq.alignment.dem.solving import Answer
from mslsq.alignment.dem.statistics import ElevationStatistics, statistics


def result_of(
    pyramids: Pyramids,
    model: Bias,
    name: str,
    answer: Answer,
    status: CoregistrationStatus,
    reason: str,
    overlap: float,
) -> Coregistration:
    pair, empty = pyramids.pair, ElevationStatistics({}, {}, {}, {})
    result = Coregistration(
        **numbers_of(answer, model, pair.metres), bias=name, status=status, reason=reason, overlap=overlap,
        changed=answer.changed.numpy(), before=empty, after=empty, frame=pyramids.frame, metres=pair.metres,
        offset=pair.offset, shape=(int(pair.known.shape[0]), int(pair.known.shape[1])), header=pair.header,
    )  # fmt: skip
    return _with_statistics(result, pair)


def numbers_of(answer: Answer, model: Bias, metres: Float[np.ndarray, "2 2"]) -> dict[str, Any]:
    """Shift, errors and coefficients as a result has them; `metres` takes pixels to metres."""
    found, to_metres = answer.known, np.eye(3)
    to_metres[:2, :2] = metres
    covariance = to_metres @ found.covariance[:3, :3] @ to_metres.T
    shift = np.append(metres @ answer.at.shift, answer.at.bias[0])
    if answer.held:
        shift[:2], covariance[:2], covariance[:, :2] = np.nan, np.nan, np.nan
    errors = np.sqrt(np.diag(found.covariance)[2:])
    return {
        "shift": shift, "covariance": covariance,
        "coefficients": dict(zip(model.names, answer.at.bias.tolist(), strict=True)),
        "coefficient_errors": dict(zip(model.names, errors.tolist(), strict=True)),
        "correlation_length": found.correlation_length * float(np.sqrt(abs(np.linalg.det(metres)))),
    }  # fmt: skip


def _with_statistics(result: Coregistration, pair: Pair) -> Coregistration:
    """Of the differences dem - reference, before any shift and after."""
    nan = torch.full_like(pair.dem, float("nan"))
    dem = torch.where(pair.dem_known, pair.dem, nan)
    reference = torch.where(pair.known, pair.reference, torch.full_like(pair.reference, float("nan")))
    before = on_grid(dem, result.shape, pair.offset) - reference
    after = corrected(result, shifted(result, dem)) - reference
    of = lambda difference: statistics(  # noqa: E731
        difference.numpy(), reference.numpy(), pair.metres, pair.stable.numpy(), result.changed
    )
    return replace(result, before=of(before), after=of(after))


def nothing(pair: Pair, model: Bias, name: str, status: CoregistrationStatus, reason: str) -> Coregistration:
    """A result that has a reason alone."""
    none = dict.fromkeys(model.names, float("nan"))
    height, width = (int(side) for side in pair.known.shape)
    nowhere = np.zeros((height, width), dtype=bool)
    nan = np.full((height, width), np.nan)
    empty = statistics(nan, pair.reference.numpy(), pair.metres, pair.stable.numpy(), nowhere)
    return Coregistration(
        np.full(3, np.nan), np.full((3, 3), np.nan), none, none, name, status, reason, 0.0,
        nowhere, float("nan"), empty, empty,
        Pyramids.of(pair, 1).frame, pair.metres, pair.offset, (height, width), pair.header,
    )  # fmt: skip

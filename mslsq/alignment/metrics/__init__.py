"""What two maps are compared by: one file each. `align(metric=...)` takes a name or one of these objects."""

from mslsq.alignment.metrics.gradients import NormalizedGradients
from mslsq.alignment.metrics.learned import LearnedFeatures, WeightsError
from mslsq.alignment.metrics.local import LocalCorrelation
from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.metrics.occupancy import Occupancy
from mslsq.alignment.metrics.squared import SquaredDifference

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        SquaredDifference(),
        SquaredDifference(inverted=True),
        LocalCorrelation(),
        NormalizedGradients(),
        LearnedFeatures(),
        Occupancy(),
    )
}
"""By name, with their defaults. The weights of learned features are read when they are first needed."""

__all__ = [
    "METRICS",
    "LearnedFeatures",
    "LocalCorrelation",
    "Metric",
    "NormalizedGradients",
    "Occupancy",
    "SquaredDifference",
    "WeightsError",
]

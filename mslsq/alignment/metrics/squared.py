"""The squared difference of values, with a gain and a bias per map: what maps of one kind are compared by."""

from dataclasses import dataclass
from typing import ClassVar

from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.pyramid import Level


@dataclass(frozen=True)
class SquaredDifference(Metric):
    """reference ≈ gain · map + bias; robust where `loss` says so. The most accurate where this is how values relate.

    Args:
        inverted: the gain is negative: a film and its print. Needs a gain and a bias (`value="gain_bias"`).
    """

    inverted: bool = False
    values: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "inverted" if self.inverted else "squared"

    @property
    def words(self) -> str:
        return "the values, inverted" if self.inverted else "the values"

    @property
    def sign(self) -> int:
        return -1 if self.inverted else 1

    def level(self, level: Level) -> Level:
        return level

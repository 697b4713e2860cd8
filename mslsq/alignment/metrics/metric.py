"""What a metric is: what it makes of a map before squared differences are taken, and whether gain and bias are then
those of the values."""

from abc import ABC, abstractmethod
from typing import ClassVar

from mslsq.alignment.pyramid import Level


class Metric(ABC):
    """How two maps are compared. One object serves all maps; subclasses are frozen dataclasses.

    Solves, starts and tests of a placement (`mslsq.alignment.evidence`, `mslsq.alignment.rivals`) work on the squared
    difference of what `level` makes of both maps, with a gain and a bias between them. A metric of your own is a
    subclass with `name`, `words` and `level`:

    >>> from dataclasses import dataclass
    >>> from mslsq.alignment import align, metrics, synthetic
    >>> @dataclass(frozen=True)
    ... class Logarithm(metrics.Metric):
    ...     name, words = "logarithm", "the logarithms of the values"
    ...
    ...     def level(self, level):
    ...         return level.with_raster((level.raster + 3.0).clamp(min=0.1).log())
    >>> pair = synthetic.make_pair("camera", "translation", seed=1, size=128)
    >>> result = align([pair.reference, pair.moving], model="translation", metric=Logarithm())
    >>> result.metrics
    ['', 'logarithm']
    """

    name: ClassVar[str]
    words: ClassVar[str]
    """What is compared, for reasons: "Aligned by ..."."""
    values: ClassVar[bool] = False
    """Are gain and bias of the comparison those of the maps' values? If not, they are found at the end
    (`mslsq.alignment.linking.values_between`)."""

    relief: ClassVar[tuple[float, float]] = (0.0, 0.4)
    """What is taken off `min_ncc` and `min_detail` where a placement leads every other shift by `sure`, as the noise of
    what a metric makes of values is not known. Of values it is (`mslsq.alignment.noise`): there it is for maps that
    have drifted, and says which placements loops through other maps may still speak for."""

    sure: ClassVar[float] = 3.0
    """A lead over all other shifts that is not of chance: of 624 placements of maps without a match it was at most
    2.3."""

    coarse: ClassVar[bool] = True
    """May the detail of a coarser level alone speak for a placement (`mslsq.alignment.evidence.strongest`)? If not, it
    counts where that lead speaks for it, too."""

    arcs: ClassVar[bool] = True
    """Is the next piece of an arc to be expected (`mslsq.alignment.apertures`), as two scenes may have a form in
    common?"""

    @property
    def sign(self) -> int:
        """Of the gain, 1 or -1; of a metric that compares values."""
        return 1

    @abstractmethod
    def level(self, level: Level) -> Level:
        """What is compared on one level of a map's pyramid: any number of channels, finite everywhere (holes of the
        given raster are filled), with a mask that is true where nothing beyond the given mask was used.

        The values of the given raster have a mean of 0 and a standard deviation of 1 on the finest level. What is made
        of two maps that show the same must be the same in every rotation, up to a gain and a bias: a search turns maps
        after this.
        """

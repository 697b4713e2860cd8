"""`model="piecewise"`: maps are placed by `options.BASE`, and then bent, each on the reference."""

from mslsq.alignment.bending import Bent, bend
from mslsq.alignment.draft import Draft
from mslsq.alignment.estimate import Estimate, judge, with_values
from mslsq.alignment.linking import Linker
from mslsq.alignment.metrics import METRICS, Metric, Occupancy
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.result import Alignment


def check_bends(joint: bool | str, metric: Metric, previous: Alignment | None) -> None:
    """What places all maps at once, keeps places or lays walls on walls knows of matrices alone.

    Raises:
        AlignmentOptionError: maps are to be placed jointly, added to others, or are occupancy maps. (Bent by their
            walls, nine pairs of such maps were no nearer to annotated points, three of them 13 to 27 px farther off.)
    """
    if isinstance(metric, Occupancy):
        raise AlignmentOptionError(
            "align: metric='occupancy' places a map as a whole, walls do not tell how it bends; use model='se2' or "
            "'sim2' with it, or another metric with model='piecewise'."
        )
    if joint is True:
        raise AlignmentOptionError(
            "align: joint=True solves for one matrix per map; model='piecewise' needs joint=False, or 'auto'. To bend "
            "maps that were placed jointly, give their transforms as init."
        )
    if previous is not None:
        raise AlignmentOptionError(
            "align: model='piecewise' does not add maps to others; place all again without previous, with "
            "init=previous.transforms for the maps that it has."
        )


def bend_all(linker: Linker, draft: Draft) -> None:
    """Bend every map that is placed; its reason says whether it was. Of a map that the reference does not overlap, the
    bend is not known."""
    for index, state in enumerate(draft.states):
        if index != draft.reference and state.ok:
            _bend_one(linker, draft, index)


def _bend_one(linker: Linker, draft: Draft, index: int) -> None:
    entries, reference, name = draft.entries, draft.reference, draft.metrics[index]
    metric = linker.options.metric if linker.options.metric.name == name else METRICS[name]
    by = linker.by(metric)
    levels, freedom = _levels(by, reference, index), by.comparison.freedom
    frame = linker.frame(reference)
    start = Estimate(frame.from_pixels(entries["transforms"][index]), levels[0].planes.new_zeros(2), "placed")
    start = judge(start, levels[0])
    if start.overlap < linker.options.min_overlap:
        draft.reasons[index] += f" Not bent: {start.overlap:.0%} of it overlap the reference."
        return
    start = with_values(start, levels[0], start.value.new_tensor(freedom))
    height, width = linker.map(reference).mask.shape
    bent = bend(levels, start, (height, width), linker.options, freedom)
    draft.reasons[index] += f" {bent.reason}"
    if bent.bend is None:
        return
    draft.bends[index] = bent.bend
    entries["ncc"][index], entries["corner_sigma"][index] = bent.ncc, bent.corner_sigma
    if metric.values:
        _take_values(by, draft, index, bent)


def _levels(linker: Linker, reference: int, index: int) -> list[PairLevel]:
    """What is compared, finest first."""
    frame = linker.frame(reference)
    count, units = linker.count(reference, index), linker.units(reference, index)
    pyramids = [linker.pyramid(i, count, of) for i, of in zip((reference, index), units, strict=True)]
    return [PairLevel.of(one, other, frame, k) for k, (one, other) in enumerate(zip(*pyramids, strict=True))]


def _take_values(linker: Linker, draft: Draft, index: int, bent: Bent) -> None:
    """Gain and bias in the maps' own values."""
    of_fixed, of_moving = linker.units(draft.reference, index)
    gain = of_fixed[1] * bent.value[0].exp() / of_moving[1]
    draft.entries["gain"][index] = gain
    draft.entries["bias"][index] = of_fixed[0] + of_fixed[1] * bent.value[1] - gain * of_moving[0]

"""One map onto one reference, coarse to fine.

Every minimisation is one of `refine`. What this file decides is what stands around them: which starts are looked for,
which of them goes on, and whether the end is believed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.belief import Placed, believed, refused
from mslsq.alignment.candidates import CERTAIN, first_starts, plain_starts, with_late_starts
from mslsq.alignment.descent import UNFINISHED
from mslsq.alignment.estimate import Estimate, apart, judge, moved_share, no_worse, sane, with_overlap, with_values
from mslsq.alignment.evidence import evidence
from mslsq.alignment.leads import Pair
from mslsq.alignment.misfit import REJECTED, SUSPECTED
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.options import Options
from mslsq.alignment.outgrown import Instead, by_chance, instead
from mslsq.alignment.pair_level import PairLevel
from mslsq.alignment.pyramid import Level
from mslsq.alignment.refine import Refined, refine
from mslsq.alignment.result import MapStatus, Stage
from mslsq.alignment.spread import heavy_tails, residual_rms

BEATEN = 0.6
"""Hypotheses below this share of the best score do not go on to the next level: a true placement scores 2 to 4, the
best of the false ones (the next brick) 0.9."""


CERTAIN_AT_THE_END = 0.5
"""Of a placement that was found without a search: noise takes certainty on the finest level. Where correlation and the
agreement of blocks are `CERTAIN`, detail, which takes a twentieth of the time, is not asked."""

STEPS_OF_A_SMALLER_MODEL = 5
"""On the coarsest level, where a smaller model only leads to the next and its own minimum is of no use."""


def place(
    reference: Sequence[Level],
    moving: Sequence[Level],
    frame: Frame,
    options: Options,
    map_index: int,
    initial: Float[Tensor, "3 3"] | None = None,
    report: Callable[[Stage], None] | None = None,
    grow: bool = False,
) -> Placed:
    """Align one pyramid to another. `initial` (pixels, level 0) replaces the search for starts; from it, too, smaller
    models come first where it is to `grow`. Never raises for bad content.

    With `init="auto"` the identity and the phase correlation alone are tried first: of the time that a search of all
    rotations takes (0.3 s for 256²), most pairs need nothing.
    """
    like = reference[0].raster
    freedom = like.new_tensor(options.freedom)
    levels = [PairLevel.of(r, m, frame, i) for i, (r, m) in enumerate(zip(reference, moving, strict=True))]
    pair = _Search(reference, moving, levels, frame, options, freedom, map_index, report)
    if initial is None and options.init == "auto":
        placed = pair.plainly()
        if placed is not None:
            return placed
    hypotheses = first_starts(reference, moving, frame, levels, options, initial)
    hypotheses = [with_values(h, levels[-1], freedom) for h in hypotheses]
    if not any(h.overlap >= pair.least(len(levels) - 1) for h in hypotheses):
        return refused(pair, hypotheses[0], pair.stages, MapStatus.NO_OVERLAP)
    return pair.thoroughly(hypotheses, grow=grow or initial is None)


@dataclass(frozen=True)
class _Search(Pair):
    """How the placement is looked for."""

    map_index: int
    report: Callable[[Stage], None] | None
    stages: list[Stage] = field(default_factory=list)

    @property
    def growth(self) -> list[str]:
        """The models up to the one asked for, which are tried one after the other on the coarsest level."""
        names = list(MODELS)
        return names[: names.index(self.options.model) + 1]

    # ---- without a search

    def plainly(self) -> Placed | None:
        """From the identity and the phase correlation to the finest level; None as soon as the best is not certain, and
        no larger model is."""
        coarsest, at = len(self.levels) - 1, self.searched
        hypotheses = plain_starts(self.reference, self.moving, self.frame)
        hypotheses = [with_values(h, self.levels[-1], self.freedom) for h in hypotheses]
        pending: list[Stage] = []
        begun: list[Estimate] = []
        leader = None
        for position in range(coarsest, at - 1, -1):
            hypotheses, leader = self.on_level(hypotheses, position, at, pending)
            if leader is None:
                return None
            begun = begun or hypotheses
        assert leader is not None  # there is one level at least
        best = hypotheses[0]
        certain = self.certain(best, at)
        chance = by_chance(self, best, at) if certain else 0.0
        if chance < REJECTED:
            found = instead(self, [best] if certain else begun, at, grow=not certain)
            if found is not None and found.outgrown is not None:
                self.tell(pending)
                return self.too_small(found, at)
            if not certain:
                if found is None or not self.certain(found.estimate, at):
                    return None
                best, leader = found.estimate, found.leader
                self.ends[at] = best
        elif chance >= SUSPECTED:
            self.fitting.add(at)
        self.tell(pending)
        for position in range(at - 1, -1, -1):
            hypotheses, leader = self.on_level([best], position, at, pending)
            if leader is None:
                return None
            best = hypotheses[0]
            self.tell(pending)
        best, leader = self.polished(best, leader)
        placed = self.judged(best, leader)
        return placed if placed.status.ok and self.certain_at_the_end(placed) else None

    def on_level(
        self, hypotheses: list[Estimate], position: int, at: int, pending: list[Stage]
    ) -> tuple[list[Estimate], Refined | None]:
        """Each hypothesis where a solve from there ends, best first, and the best one's solve; none if no end is
        sane."""
        level, leader = self.levels[position], None
        for model in self.growth if position == len(self.levels) - 1 else [self.options.model]:
            loss = self.loss_at(position, hypotheses[0])
            last = model == self.options.model
            steps, precision = self.effort(position)
            steps = steps if last else min(steps, STEPS_OF_A_SMALLER_MODEL)
            refined = refine(hypotheses, level, model, loss, self.freedom, steps, precision)
            # Detail, which takes three times as long, chooses between hypotheses, and says whether to go on.
            asked = len(refined) > 1 or position == at
            look = judge if last and asked else with_overlap
            kept = [look(r.estimate, level) for r in refined if sane(r.estimate)]
            if not kept:
                return [], None
            hypotheses = apart(sorted(kept, key=lambda h: -h.score), self.frame)
            leader = next(r for r in refined if r.estimate.matrix is hypotheses[0].matrix)
            pending.append(self.stage(level, model, loss, hypotheses[0], leader))
        self.ends[position] = hypotheses[0]
        return hypotheses, leader

    def certain(self, estimate: Estimate, position: int) -> bool:
        """Does an estimate, judged on the level that starts are searched on, need no search?"""
        return estimate.detail >= CERTAIN and estimate.overlap >= self.least(position)

    def certain_at_the_end(self, placed: Placed) -> bool:
        """The same of a placement that is believed."""
        if placed.ncc >= CERTAIN and evidence(self.levels[0], placed.warp).agreement >= CERTAIN:
            return True
        return judge(placed.estimate, self.levels[0]).certainty >= CERTAIN_AT_THE_END

    # ---- after a search

    def thoroughly(self, hypotheses: list[Estimate], grow: bool) -> Placed:
        """Many hypotheses to the finest level: each solve's end is compared with its start, and a second look is taken
        for shifts."""
        coarsest, at, leader = len(self.levels) - 1, self.searched, None
        self.fitting.clear()
        for position in range(coarsest, -1, -1):
            level = self.levels[position]
            if position != coarsest:
                pyramids = self.reference[position], self.moving[position]
                hypotheses = with_late_starts(hypotheses, *pyramids, level, self.frame, self.options, self.freedom)
            for model in self.growth if position == coarsest and grow else [self.options.model]:
                hypotheses, loss, leader = self.settled(hypotheses, position, model)
                self.tell([self.stage(level, model, loss, max(hypotheses, key=lambda h: h.score), leader)])
            ranked = sorted(
                hypotheses, key=lambda h: (not self.allows(h.matrix), h.overlap < self.least(position), -h.score)
            )
            self.ends[position] = ranked[0]
            keep = (3 if position == coarsest else 2) if position > 1 else 1
            worth = BEATEN * ranked[0].score
            hypotheses = [
                h
                for h in apart(ranked, self.frame)[:keep]
                if (h.score >= worth and self.allows(h.matrix)) or h is ranked[0]
            ]
            if position == at and not (self.certain(ranked[0], at) and by_chance(self, ranked[0], at) >= REJECTED):
                found = instead(self, hypotheses, at, grow=False)
                if found is not None and found.outgrown is not None:
                    return self.too_small(found, at)
        assert leader is not None  # there is one level at least
        return self.judged(*self.polished(hypotheses[0], leader))

    def settled(
        self, hypotheses: list[Estimate], position: int, model: str
    ) -> tuple[list[Estimate], str | None, Refined]:
        """The hypotheses refined on one level, each where that was no worse than before; and the best one's solve."""
        level = self.levels[position]
        for attempt in range(3):
            loss = self.loss_at(position, hypotheses[0])
            refined = refine(hypotheses, level, model, loss, self.freedom, *self.effort(position))
            hypotheses = [
                judge(r.estimate if no_worse(r.estimate, old, level, r.valid, self.least(position)) else old, level)
                for r, old in zip(refined, hypotheses, strict=True)
            ]
            leader = refined[max(range(len(hypotheses)), key=lambda k: hypotheses[k].score)]
            changed = [moved_share(h, level, r.valid) > 0.01 for h, r in zip(hypotheses, refined, strict=True)]
            # The samples were chosen by the start: choose again where they have moved, once or twice.
            if (position == len(self.levels) - 1 and attempt == 0) or not any(changed):
                break
        return hypotheses, loss, leader

    # ---- common to both

    def effort(self, position: int) -> tuple[int, str]:
        """Steps, and how near to the minimum."""
        most = self.options.max_steps
        return (most, "finest") if position == 0 else (min(most, 15), "coarse")

    def loss_at(self, position: int, leader: Estimate) -> str | None:
        """The finest level is solved by plain least squares where there are no outliers."""
        loss = self.options.loss
        return None if position == 0 and loss and not heavy_tails(leader, self.levels[0]) else loss

    def stage(self, level: PairLevel, model: str, loss: str | None, best: Estimate, leader: Refined) -> Stage:
        rms = leader.rms
        return Stage(self.map_index, level.index, level.size, model, loss or "l2", rms, best.overlap, best.ncc)

    def tell(self, stages: list[Stage]) -> None:
        """Keep and report stages, and empty the list."""
        self.stages.extend(stages)
        for stage in stages:
            if self.report is not None:
                self.report(stage)
        stages.clear()

    def polished(self, estimate: Estimate, leader: Refined) -> tuple[Estimate, Refined]:
        """Once more with all pixels, where the finest level has been sampled with a stride."""
        finest = self.levels[0]
        if finest.stride == 1:
            return estimate, leader
        level = PairLevel.of(self.reference[0], self.moving[0], self.frame, 0, most=finest.size[0] * finest.size[1])
        loss = self.loss_at(0, estimate)
        (refined,) = refine([estimate], level, self.options.model, loss, self.freedom, *self.effort(0))
        if not sane(refined.estimate) or refined.status in UNFINISHED:
            return estimate, leader  # maps that have drifted: every pixel pulls elsewhere
        polished = judge(refined.estimate, finest)
        self.tell([self.stage(level, self.options.model, loss, polished, refined)])
        return polished, refined

    def judged(self, estimate: Estimate, leader: Refined) -> Placed:
        """Believe the estimate or say why not."""
        return believed(self, estimate, leader, self.stages)

    def too_small(self, found: Instead, position: int) -> Placed:
        """What is to be said of a model that a larger one has outgrown on a coarse level. The finest one, where nothing
        is solved any more, tells the residuals."""
        level, finest = self.levels[position], self.levels[0]
        loss = self.options.loss if position else None
        self.tell([self.stage(level, self.options.model, loss, found.estimate, found.leader)])
        estimate = with_overlap(found.estimate, finest)
        rms = residual_rms(estimate, finest)
        looked = Stage(self.map_index, 0, finest.size, self.options.model, "l2", [rms], estimate.overlap, estimate.ncc)
        self.tell([looked])
        return believed(self, estimate, found.leader, self.stages, found.outgrown)

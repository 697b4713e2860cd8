"""A look at a solution that takes long begins programs of second derivatives, for the next ones."""

from mslsq.adjoint.outputs import Ended
from mslsq.native.choice import is_recorded_elsewhere
from mslsq.problem.system import Inputs
from mslsq.solvers.second_order import REPLAY_LANES, REPLAY_SECONDS, kinds_of_programs, look_for_second_order


def has_looked(ended: Ended, inputs: tuple[Inputs, ...], seconds: float) -> None:
    """Keep count of what looking at solutions has taken; begin with programs of second derivatives where that pays.

    Args:
        inputs: as given by the user.
        seconds: processor time that this look has taken.
    """
    task, plan, values = ended.task, ended.outcome.planned[0], ended.outcome.values
    for prospect in plan.prospects.values():
        prospect.seconds += seconds
    if plan.plain.whole is not None:
        plan.plain.whole.seconds_of_looks += seconds
    if seconds < REPLAY_SECONDS or plan.execution.why_eager or not task.solver.keeps_graphs:
        return
    if plan.compressed is not None or not plan.is_on_cpu or is_recorded_elsewhere():
        return
    if plan.has_second_order(*kinds_of_programs(task.solver)):
        return
    blocks = plan.blocks(task.system, task.batch, task.batched)
    if sum(block.outer * block.lanes for block in blocks) < REPLAY_LANES:
        return
    look_for_second_order(plan, task.solver, blocks, values, inputs, lambda _: True)

"""A layer inside `torch.export.export`: its solve is recorded on stand-ins, and the program gets plain operations.

`torch.export` runs a module on fake tensors, which have a shape and no numbers; a solve reads numbers (index tensors,
whether a Jacobian can be mapped) when it plans its structure. None of them are the user's data, so a fixed-step solve
of ones of the same shapes writes down the same operations, and those are done on the fake tensors.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from mslsq import pytree
from mslsq.adjoint.compiling import ExportError
from mslsq.front.solve import solve
from mslsq.private import FakeTensor, without_modes
from mslsq.problem import Problem, Shared
from mslsq.solution import Solution
from mslsq.solvers import Solver
from mslsq.solvers.outer import OuterSolver
from mslsq.tracing.graph import graph_of


def is_being_exported() -> bool:
    """Is `torch.export.export` running the module? With strict=True it does not run it but reads it, which a solve
    refuses in words."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def exported_solve(
    problem: Problem,
    values: Any,
    data: Any,
    in_dims: Any,
    solver: Solver | OuterSolver,
    project_start: bool,
) -> Solution:
    """`solve` as `max_steps` steps of plain operations, for inference.

    Raises:
        ExportError: the solver stops early, compiles or calls back, or the recording failed; names
            `mslsq.interop.export`, which records on real numbers.
    """
    fixed = dataclasses.replace(check_exportable(solver), trace="never")
    stated = _Stated(problem, fixed, in_dims, project_start)
    plain = pytree.map_leaves(lambda leaf: leaf.value if isinstance(leaf, Shared) else leaf, (values, data or {}))
    leaves, structure = pytree.flatten(plain)
    found: dict[str, Any] = {}

    def run(module: Callable[..., Any], given: tuple[Tensor, ...]) -> list[Tensor]:
        output, found["structure"] = pytree.flatten(module(*pytree.unflatten(given, structure)))
        return output

    tensors = [*state_of(stated), *leaves]
    with without_modes(), torch.no_grad():
        try:
            graph = graph_of_module(stated, [_stand_in(tensor) for tensor in tensors], run)
        except Exception as error:
            raise ExportError(
                f"The solve of a layer could not be recorded for torch.export ({type(error).__name__}: {error}). "
                "mslsq.interop.export(module, args) records on the numbers of your example instead of on ones."
            ) from error
    return pytree.unflatten(graph(*tensors), found["structure"])


def state_of(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a module, in the order in which its graph takes them."""
    return [*dict(module.named_parameters()).values(), *dict(module.named_buffers()).values()]


def graph_of_module(
    module: nn.Module,
    tensors: list[Tensor],
    run: Callable[[Callable[..., Any], tuple[Tensor, ...]], list[Tensor]],
) -> fx.GraphModule:
    """The operations of a module's forward pass, from its state and other tensors.

    Args:
        tensors: examples for the state of the module (as in `state_of`), then for what `run` is given.
        run: `run(module, given)` calls the module, whose state is that of the graph, and returns tensors.
    """
    names = [*dict(module.named_parameters()), *dict(module.named_buffers())]

    def flat(*given: Tensor) -> list[Tensor]:
        held = dict(zip(names, given, strict=False))
        return run(lambda *args, **options: functional_call(module, held, args, options), given[len(names) :])

    flat(*tensors)  # plans the structure, which is read from index tensors
    return graph_of(flat, tensors)


def check_exportable(solver: Solver | OuterSolver, layer: str = "") -> Solver:
    """The solver, which takes a fixed number of steps and calls nothing.

    Raises:
        ExportError: the solver of this layer stops early, compiles, calls back, prints or looks at a clock; or it takes
            as many rounds as it needs.
    """
    which, hint = (f" of layer {layer!r}", "") if layer else ("", " See also mslsq.interop.export.")
    if isinstance(solver, OuterSolver):
        raise ExportError(
            f"The solver{which} is {type(solver).__name__}, which takes as many rounds as it needs; an exported "
            "program takes a fixed number of steps. Export a plain solver instead, of costs with robust losses."
        )
    unwanted = {"early_stop": False, "compile": False, "callback": None, "verbose": False, "time_budget": None}
    unwanted |= {"checkpoint": None}
    for option, wanted in unwanted.items():
        if getattr(solver, option) != wanted:
            raise ExportError(
                f"The solver{which} has {option}={getattr(solver, option)!r}; an exported program takes a fixed number "
                f"of steps and nothing but tensors: {type(solver).__name__}(max_steps={min(solver.max_steps, 20)}, "
                f"early_stop=False).{hint}"
            )
    return solver


class _Stated(nn.Module):
    """The solve of a problem, as a module that `functional_call` gives other parameters."""

    def __init__(self, problem: Problem, solver: Solver, in_dims: Any, project_start: bool):
        super().__init__()
        self.problem, self.solver = problem, solver
        self.options = {"in_dims": in_dims, "project_start": project_start}

    def forward(self, values: Any, data: Any) -> Solution:
        return solve(self.problem, values, data, solver=self.solver, **self.options)


def _stand_in(tensor: Tensor) -> Tensor:
    """A real tensor like a fake one: ones, and zeros where ones could be an index out of range."""
    shape, dtype = tuple(int(size) for size in tensor.shape), tensor.dtype
    fill = 1 if tensor.is_floating_point() or tensor.is_complex() else 0
    if isinstance(tensor, FakeTensor) or type(tensor) is not Tensor:
        return torch.full(shape, fill, dtype=dtype, device=tensor.device)
    return tensor.detach()

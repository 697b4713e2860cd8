"""A layer inside `torch.export.export`: its solve is recorded on stand-ins, and the program gets plain operations.

`torch.export` runs a module on fake tensors, which have a shape and no numbers; a solve reads numbers (index tensors,
whether a Jacobian can be mapped) when it plans its structure. None of them are the user's data, so a fixed-step solve
of ones of the same shapes writes down the same operations, and those are done on the fake tensors.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from mslsq import pytree
from mslsq.adjoint.compiling import NotExportableError
from mslsq.linearize.operators import WHILE_RECORDING
from mslsq.problem import Problem, Shared
from mslsq.solution import Solution
from mslsq.solve import solve
from mslsq.solvers import Solver


def is_being_exported() -> bool:
    """Is `torch.export.export` running the module? With strict=True it does not run it but reads it, which a solve
    refuses in words."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def exported_solve(problem: Problem, values: Any, data: Any, in_dims: Any, solver: Solver) -> Solution:
    """`solve` as `max_steps` steps of plain operations, for inference.

    Raises:
        NotExportableError: the solver stops early, compiles or calls back, or the recording failed; names
            `mslsq.interop.export`, which records on real numbers.
    """
    for option, wanted in (("early_stop", False), ("compile", False), ("callback", None), ("verbose", False)):
        if getattr(solver, option) != wanted:
            raise NotExportableError(
                f"A layer is being exported whose solver has {option}={getattr(solver, option)!r}; a program takes a "
                f"fixed number of steps and nothing but tensors: {type(solver).__name__}(max_steps="
                f"{min(solver.max_steps, 20)}, early_stop=False). See also mslsq.interop.export."
            )
    stated = _Stated(problem, dataclasses.replace(solver, trace="never"), in_dims)
    state = {**dict(problem.named_parameters()), **dict(problem.named_buffers())}
    plain = pytree.map_leaves(lambda leaf: leaf.value if isinstance(leaf, Shared) else leaf, (values, data or {}))
    leaves, structure = pytree.flatten(plain)
    tensors = [*state.values(), *leaves]
    found: dict[str, Any] = {}

    def flat(*given: Tensor) -> list[Tensor]:
        held = {f"problem.{name}": tensor for name, tensor in zip(state, given, strict=False)}
        own_values, own_data = pytree.unflatten(list(given[len(state) :]), structure)
        output, found["structure"] = pytree.flatten(functional_call(stated, held, (own_values, own_data)))
        return output

    with _outside_of_export(), torch.no_grad():
        try:
            examples = [_stand_in(tensor) for tensor in tensors]
            flat(*examples)  # plans the structure
            graph = make_fx(flat, decomposition_table=WHILE_RECORDING)(*examples)
        except Exception as error:
            raise NotExportableError(
                f"The solve of a layer could not be recorded for torch.export ({type(error).__name__}: {error}). "
                "mslsq.interop.export(module, args) records on the numbers of your example instead of on ones."
            ) from error
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return pytree.unflatten(graph(*tensors), found["structure"])


@contextlib.contextmanager
def _outside_of_export() -> Iterator[None]:
    """No mode of the export is active: tensors are real, and nothing is written down."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        yield


class _Stated(nn.Module):
    """The solve of a problem, as a module that `functional_call` gives other parameters."""

    def __init__(self, problem: Problem, solver: Solver, in_dims: Any):
        super().__init__()
        self.problem, self.solver, self.in_dims = problem, solver, in_dims

    def forward(self, values: Any, data: Any) -> Solution:
        return solve(self.problem, values, data, in_dims=self.in_dims, solver=self.solver)


def _stand_in(tensor: Tensor) -> Tensor:
    """A real tensor like a fake one: ones, and zeros where ones could be an index out of range."""
    shape, dtype = tuple(int(size) for size in tensor.shape), tensor.dtype
    fill = 1 if tensor.is_floating_point() or tensor.is_complex() else 0
    if isinstance(tensor, FakeTensor) or type(tensor) is not Tensor:
        return torch.full(shape, fill, dtype=dtype, device=tensor.device)
    return tensor.detach()

"""Export: a module that solves with a fixed number of steps becomes a `torch.export` program of plain operations."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from mslsq.front.exporting import ExportError, check_exportable, graph_of_module, state_of
from mslsq.front.layer import LeastSquaresLayer
from mslsq.manifolds import Manifold
from mslsq.tracing.graph import distinct


def export(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
    """The forward pass of a module with solves in it, as a `torch.export.ExportedProgram`.

    The loop of the solver is unrolled into plain operations, `max_steps` of them, whatever the Jacobians come from
    (in closed form they are shorter). Problems that are done before do not move, so that the answer is that of the
    module. Parameters and buffers of the module are those of the program; index tensors are constants in it.

    Args:
        module: a `LeastSquaresLayer`, or any module that solves in its forward pass, with
            `solver=LevenbergMarquardt(max_steps=k, early_stop=False)` (or another method).
        args, kwargs: example inputs: tensors, or dicts, lists and tuples of them (for the start and the data of a
            layer storage tensors in place of manifold elements). Shapes and dtypes are fixed by them.

    Returns:
        The program; `program.module()(*args)` runs it, `torch.export.save` saves it. It takes what the example had,
        and returns the module's own output with storage tensors for manifold elements; a `Solution` becomes a dict
        with `value`, `cost`, `status`, `num_steps`. It is for inference: its outputs carry no derivatives.

    Raises:
        ExportError: a layer whose solver stops early, compiles or calls back; an output that is no tree of tensors.

    >>> layer = mslsq.LeastSquaresLayer(problem, mslsq.LevenbergMarquardt(max_steps=10, early_stop=False))
    >>> program = mslsq.interop.export(layer, ({"pose": start}, {"between": {"measured": measured}}))
    >>> program.module()({"pose": start}, {"between": {"measured": measured}})["value"]["pose"]
    """
    kwargs = dict(kwargs or {})
    module = copy.deepcopy(module)
    for name, layer in module.named_modules():
        if isinstance(layer, LeastSquaresLayer):
            # Nothing is recorded while this is being recorded.
            layer.solver = dataclasses.replace(check_exportable(layer.solver, name or "itself"), trace="never")
    leaves: list[Tensor] = []
    frame = _take_apart((args, kwargs), leaves)
    results: dict[str, Any] = {}

    def run(forward: Callable[..., Any], given: tuple[Tensor, ...]) -> list[Tensor]:
        given_args, given_kwargs = _put_together(frame, iter(given))
        output: list[Tensor] = []
        results["frame"] = _take_apart(forward(*given_args, **given_kwargs), output)
        return output

    state = state_of(module)
    with torch.no_grad():
        try:
            graph = graph_of_module(module, distinct([*state, *leaves]), run)
        except RuntimeError as error:
            raise ExportError(
                f"The forward pass of {type(module).__name__} cannot be recorded ({error}). A solve must take a fixed "
                "number of steps: solver=LevenbergMarquardt(max_steps=k, early_stop=False, trace='never')."
            ) from error
        constants = _constants_as_inputs(graph)
        graph.recompile()
        program = _Program(graph, state, constants, results["frame"])
        return torch.export.export(program, args, kwargs, strict=False)


def _constants_as_inputs(graph: GraphModule) -> list[Tensor]:
    """Index tensors become the last inputs of the graph: `torch.export` loses attributes of a submodule. Those that
    only dead operations read are dropped: torch 2.9 makes inputs of them, and then does not find them."""
    reads = graph.graph.find_nodes(op="get_attr")
    constants: dict[str, Tensor] = {str(node.target): getattr(graph, str(node.target)) for node in reads}
    last = graph.graph.find_nodes(op="placeholder")[-1]
    for name in constants:
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"held_{name}")
        for node in reads:
            if node.target == name:
                node.replace_all_uses_with(last)
                graph.graph.erase_node(node)
    for name in constants.keys() | dict(graph.named_buffers()).keys():
        delattr(graph, name)
    return list(constants.values())


class _Program(nn.Module):
    """The recorded graph, with the parameters and buffers of the module it comes from."""

    def __init__(self, graph: GraphModule, state: list[Tensor], constants: list[Tensor], frame: Any):
        super().__init__()
        self._graph, self._frame = graph, frame
        self._state, self._constants = _Held(state), _Held(constants)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves: list[Tensor] = []
        _take_apart((args, kwargs), leaves)
        return _put_together(self._frame, iter(self._graph(*self._state, *leaves, *self._constants)))


class _Held(nn.Module):
    """A list of tensors. Those of integers are buffers: torch 2.9 cannot load a program with parameters of integers."""

    def __init__(self, tensors: list[Tensor]):
        super().__init__()
        for number, tensor in enumerate(tensors):
            if tensor.is_floating_point() or tensor.is_complex():
                self.register_parameter(str(number), nn.Parameter(tensor.detach(), requires_grad=False))
            else:
                self.register_buffer(str(number), tensor.detach())
        self._count = len(tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return (getattr(self, str(number)) for number in range(self._count))


_LEAF = object()
"""Where a tensor was."""


def _take_apart(tree: Any, leaves: list[Tensor]) -> Any:
    """The frame of a tree of dicts, lists and tuples; its tensors are appended to `leaves`."""
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return _LEAF
    if isinstance(tree, Manifold):
        return _take_apart(tree.storage, leaves)
    if hasattr(tree, "num_steps"):  # a Solution
        return _take_apart({name: getattr(tree, name) for name in ("value", "cost", "status", "num_steps")}, leaves)
    if isinstance(tree, Mapping):
        return {key: _take_apart(value, leaves) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return tuple(_take_apart(value, leaves) for value in tree)
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise ExportError(
        f"A {type(tree).__name__} cannot pass through an exported program: only tensors, manifold elements, and dicts, "
        "lists and tuples of them."
    )


def _put_together(frame: Any, leaves: Any) -> Any:
    """The tree of a frame around other tensors."""
    if frame is _LEAF:
        return next(leaves)
    if isinstance(frame, dict):
        return {key: _put_together(value, leaves) for key, value in frame.items()}
    if isinstance(frame, tuple):
        return tuple(_put_together(value, leaves) for value in frame)
    return frame

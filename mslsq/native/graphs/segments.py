"""A recorded graph as a few calls of native code: runs of its operations on small tensors become loops in C++.

A step of a small problem is 300 to 800 operations, each a few microseconds of PyTorch around nanoseconds of work. All
operations that are known as loops and need nothing but what is there already become one function, a segment; what is
not known (factorisations, operators of others) stands between segments, called as before.
"""

import ctypes
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, fx

from mslsq.native.graphs.arrays import TYPES, Array, NoLoopError, contiguous
from mslsq.native.graphs.calling import ALIGNED, Opening, SegmentCall
from mslsq.native.graphs.calls import read_by
from mslsq.native.graphs.constants import folded
from mslsq.native.graphs.splitting import Constant, Segment, meta_of, split
from mslsq.native.graphs.whole import Place, WholeCall
from mslsq.native.graphs.writer import Writer, is_view
from mslsq.tracing.replay import straight_line


class _Scratch:
    """Places in the memory of a segment, given again when they are free."""

    def __init__(self, dtype: torch.dtype):
        self._real, self.bytes = dtype.itemsize, 0
        self._free: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}

    def __call__(self, numbers: int, type_: str) -> str:
        size = numbers * {"real": self._real, "long": 8, "int": 4, "bool": 1}[type_]
        size = -(-size // ALIGNED) * ALIGNED
        at = self._free[size].pop() if self._free.get(size) else self.bytes
        self.bytes = max(self.bytes, at + size)
        self._sizes[at] = size
        return f"(({type_}*)(scratch + {at}L))"

    def give_back(self, base: str) -> None:
        """The memory of an array that is read no more."""
        if base.startswith("((") and "scratch + " in base:
            at = int(base.split("scratch + ")[1].rstrip("L)"))
            self._free.setdefault(self._sizes[at], []).append(at)


def _layout(node: fx.Node) -> Array:
    """The memory of a result: laid out as it was recorded, where that has no gaps."""
    meta = meta_of(node)
    shape, strides = tuple(meta.shape), tuple(meta.stride)
    steps = sorted((step, size) for step, size in zip(strides, shape, strict=True) if size > 1)
    expected, dense = 1, True
    for step, size in steps:
        dense, expected = dense and step == expected, expected * size
    return Array("", 0, shape, strides if dense else contiguous(shape), meta.dtype)


class Segments:
    """A graph as segments, and what is between them.

    Args:
        graph: recorded, with `tensor_meta` of its nodes.
        dtype: of its real numbers.

    Raises:
        NoLoopError: it does not pay, or cannot be done.
    """

    def __init__(self, graph: fx.GraphModule, dtype: torch.dtype):
        graph = folded(graph)
        self._module, self._dtype = graph, dtype
        nodes = list(graph.graph.nodes)
        for node in nodes:
            if node.op == "get_attr":
                node.meta["tensor_meta"] = Constant.of(operator.attrgetter(str(node.target))(graph))
        self._order = split(nodes)
        self._segments = [part for part in self._order if isinstance(part, Segment)]
        if not self._segments:
            raise NoLoopError("there is nothing that pays")
        self._slots: dict[fx.Node, int] = {}
        """The places of tensors among the pointers: those that segments read, and those that they fill..."""
        self._made: dict[fx.Node, Array] = {}
        """What segments fill, by node."""
        self._fixed: dict[int, int] = {}
        """... and those of functions of other libraries and of plans, by their address..."""
        self._held: list[Tensor] = []
        """... which must live as long."""
        self._scratch = _Scratch(dtype)
        self._write()

    @property
    def source(self) -> str:
        """The program."""
        header = files("mslsq.native").joinpath("source", "arrays.h").read_text()
        real = {torch.float64: "double", torch.float32: "float"}[self._dtype]
        functions = [segment.text for segment in self._segments]
        return "\n".join([f"#define REAL {real}", header, *self._constants, *functions])

    def _write(self) -> None:
        inside = {node for segment in self._segments for node in segment.nodes}
        writer = Writer(self._scratch, self._at, self._at_tensor)
        last = {x: node for segment in self._segments for node in segment.nodes for x in node.all_input_nodes}
        held: Counter[str] = Counter()

        def arrays_of(node: fx.Node) -> Sequence[Array]:
            found = writer.arrays[node]
            return found if isinstance(found, tuple) else (found,)

        for number, segment in enumerate(self._segments):
            writer.lines = []
            for node in segment.nodes:
                for x in read_by(node):
                    if x not in writer.arrays:
                        meta = meta_of(x)
                        slot = self._slots[x] = self._num_slots
                        writer.arrays[x] = Array(f"x{slot}", 0, tuple(meta.shape), tuple(meta.stride), meta.dtype)
                        if x.op == "call_function":
                            segment.results.append(x)
                self._write_node(writer, node, any(user not in inside for user in node.users))
                for array in arrays_of(node):
                    held[array.base] += 1
                for x in (*node.all_input_nodes, *([] if node in last else [node])):
                    if x in inside and last.get(x, node) is node:
                        for array in arrays_of(x):
                            held[array.base] -= 1
                            if not held[array.base]:
                                self._scratch.give_back(array.base)
            segment.text = self._function(f"segment_{number}", writer)
        self._constants = writer.constants

    @property
    def _num_slots(self) -> int:
        return len(self._slots) + len(self._fixed)

    def _at(self, address: int) -> str:
        if address not in self._fixed:
            self._fixed[address] = self._num_slots
        return f"at[{self._fixed[address]}]"

    def _at_tensor(self, tensor: Tensor) -> str:
        self._held.append(tensor)
        return self._at(tensor.data_ptr())

    def _write_node(self, writer: Writer, node: fx.Node, is_tensor: bool) -> None:
        if not is_tensor:
            writer.write(node)
            return
        slot = self._slots[node] = self._num_slots
        into = self._made[node] = replace(_layout(node), base=f"x{slot}")
        if is_view(node):
            writer.write(node)
            writer.copy(writer.arrays[node], into)
        else:
            writer.write(node, into)

    def _function(self, name: str, writer: Writer) -> str:
        body = "\n".join(writer.lines)
        used = sorted(map(int, set(re.findall(r"\bx(\d+)\[", body))))
        types = {self._slots[node]: TYPES[meta_of(node).dtype] for node in self._slots}
        return "\n".join(
            [
                f'extern "C" __attribute__((visibility("default"))) long {name}(char* const* at, char* scratch) {{',
                *[f"{types[slot]}* x{slot} = ({types[slot]}*)at[{slot}];" for slot in used],
                body,
                "return 0;",
                "}",
            ]
        )

    def callable(self, library: ctypes.CDLL) -> Callable[..., list[Tensor]]:
        """The graph as a function of its inputs."""
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        inputs = [part for part in self._order if not isinstance(part, Segment) and part.op == "placeholder"]
        for node in inputs:
            copied[node] = graph.node_copy(node)
        given = [node for node in self._slots if node.op in ("placeholder", "get_attr")]
        for node in given:
            if node.op == "get_attr":
                copied[node] = graph.node_copy(node)
        opening = Opening(
            [(self._slots[node], tuple(meta_of(node).stride)) for node in given],
            [(self._slots[node], array.shape, array.strides, array.dtype) for node, array in self._made.items()],
            list(self._fixed.items()),
            self._num_slots,
            self._scratch.bytes,
            tuple(self._held),
        )
        opened = graph.call_function(opening, tuple(copied[node] for node in given))
        memory = graph.call_function(operator.getitem, (opened, 0))
        for number, node in enumerate(self._made):
            copied[node] = graph.call_function(operator.getitem, (opened, number + 1))
        count = 0
        for part in self._order:
            if isinstance(part, Segment):
                slots = [(self._slots[x], tuple(meta_of(x).stride)) for x in part.results]
                call = SegmentCall(getattr(library, f"segment_{count}"), slots)
                graph.call_function(call, (memory, *[copied[x] for x in part.results]))
                count += 1
            elif part not in copied:
                if part.op == "output":
                    graph.call_function(opening.close, (memory,))
                copied[part] = graph.node_copy(part, copied.__getitem__)
        return straight_line(graph, self._module)

    def whole(self, library: ctypes.CDLL) -> WholeCall | None:
        """The graph as one call; None where something stands between segments."""
        inputs = [part for part in self._order if not isinstance(part, Segment) and part.op == "placeholder"]
        output = self._order[-1]
        assert not isinstance(output, Segment)
        if len(self._segments) != 1 or any(isinstance(x, fx.Node) and x.op == "call_function" for x in self._order):
            return None
        constants = [node for node in self._slots if node.op == "get_attr"]
        held = [operator.attrgetter(str(node.target))(self._module) for node in constants]

        def given(node: fx.Node) -> Place | None:
            meta = meta_of(node)
            return Place(self._slots[node], tuple(meta.shape), tuple(meta.stride), meta.dtype)

        def left(node: Any) -> Place | int | None:
            if node in self._made:
                array = self._made[node]
                return Place(self._slots[node], array.shape, array.strides, array.dtype)
            return inputs.index(node) if node in inputs else None

        function = library.segment_0
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_long
        fixed = [(self._slots[node], x.data_ptr()) for node, x in zip(constants, held, strict=True)]
        fixed += [(slot, address) for address, slot in self._fixed.items()]
        return WholeCall(
            function,
            tuple([given(node) if node in self._slots else None for node in inputs]),
            tuple([left(node) for node in output.args[0]]),  # type: ignore[union-attr]
            tuple(fixed),
            (*held, *self._held),
            self._num_slots,
            self._scratch.bytes,
        )

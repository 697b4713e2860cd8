"""The linearization of a whole problem as C++: it adds up what the rows of the residual contribute, those that are
copies of one another in a loop."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mslsq.native.copies import Copies, affine
from mslsq.native.operations import OPERATIONS
from mslsq.native.scalars import Node, Program, Scalar
from mslsq.native.text import function_text, literal, statements

DATA, INTEGERS, SHARED = "data", "integers", "shared"


@dataclass(frozen=True)
class Source:
    """Where an input is found in C++."""

    array: str
    """`DATA`, `INTEGERS` or `SHARED`, or the name of an array of vectors."""
    first: int
    """The place of its first entry there; of a shared one which it is."""
    size: int
    is_real: bool = True

    def read(self, entry: str, kind: str) -> str:
        """The expression of an entry."""
        if self.array == SHARED:
            type_ = "real" if self.is_real else "long"
            text = f"same((const {type_}*)in.shared[{self.first}] + {entry})"
        else:
            text = f"{self._vectors}[{self.first} + {entry}]"
        return f"mask_({text} != 0)" if kind == "boolean" else text

    def looked_up(self, place: str) -> str:
        """The expression of the entry at a computed place."""
        if self.array == SHARED:
            type_ = "real" if self.is_real else "long"
            return f"lookup((const {type_}*)in.shared[{self.first}], {place}, 1, 0)"
        return f"lookup_own({self._vectors}, {self.first}, {place})"

    @property
    def _vectors(self) -> str:
        return f"in.{self.array}" if self.array in (DATA, INTEGERS) else self.array


@dataclass(frozen=True)
class Part:
    """Rows of the residual that are copies of one, or a single one."""

    copies: Copies
    sums: tuple[tuple[int, Scalar], ...]
    """What one of them adds to which of the sums..."""
    scattered: tuple[tuple[tuple[int, ...], Scalar], ...] = ()
    """... and, by copy, to which of the places of what is scattered."""

    @property
    def scalars(self) -> list[Scalar]:
        """All that one of them adds."""
        return [x for _, x in (*self.sums, *self.scattered)]

    def read(self, program: Program) -> set[int]:
        """The numbers of the tensors that they are computed from."""
        outputs, copies = [x.number for x in self.scalars], self.copies
        nodes = [program.nodes[n] for n in program.needed(outputs)]
        leaves = [copies.leaves[node.detail[1]].tensor for node in nodes if _is_leaf(node, copies)]
        return {*program.inputs_of(outputs), *(tensor for tensor in leaves if tensor is not None)}


@dataclass(frozen=True)
class Linearizing:
    """The sums of all parts at the values that a program is given, and at what else the parts read with them.

    Attributes:
        sources: of the inputs, by number.
        initial: what each sum begins with.
        scattered: how many numbers stand behind the sums, to which copies add in places of their own.
    """

    program: Program
    sources: Mapping[int, Source]
    parts: Sequence[Part]
    initial: Sequence[float]
    scattered: int = 0

    @property
    def size(self) -> int:
        """How many numbers that are."""
        return len(self.initial) + self.scattered

    def text(self, name: str, loops: int = 1) -> str:
        """`name_linearize(in, x, model)`.

        Args:
            loops: over the same rows, each of which adds up its share of the sums, and computes again what they have in
                common: for where there are fewer registers than sums.
        """
        program, read = self.program, reader(self.sources)
        varying = {part.copies.number: _varying(program, part) for part in self.parts if part.copies.leaves}
        inside = set[int]().union(*varying.values())
        outputs = [x.number for part in self.parts for x in part.scalars]
        lines = [f"V a{k} = splat((real){value!r});" for k, value in enumerate(self.initial)]
        lines += [f"for (long k = {len(self.initial)}; k < {self.size}; k++) model[k] = V{{}};"] * bool(self.scattered)
        lines += statements(program, (n for n in program.needed(outputs) if n not in inside), read)
        tables: list[str] = []
        for part in self.parts:
            prefix = f"{name}_{part.copies.number}"
            if not part.copies.leaves:
                # Copies without leaves read the same, and add to the same places.
                lines += [f"a{k} = a{k} + v{x.number};" for k, x in part.sums] * len(part.copies.members)
                lines += self._scattering(prefix, part, tables) * len(part.copies.members)
                continue
            own = varying[part.copies.number]
            leaf = _leaf_reader(prefix, part.copies, self.sources, tables)
            for first, sums in enumerate(_divided(part.sums, loops)):
                # What is scattered is not taken apart: the first loop has it.
                scalars = [x for _, x in sums] if first else [*[x for _, x in sums], *[x for _, x in part.scattered]]
                body = statements(
                    program,
                    (n for n in program.needed(x.number for x in scalars) if n in own),
                    lambda node, operands, part=part, leaf=leaf: (
                        leaf(node) if _is_leaf(node, part.copies) else read(node, operands)
                    ),
                )
                body += [] if first else self._scattering(prefix, part, tables)
                lines += _loop(len(part.copies.members), body, sums)
        lines += [f"model[{k}] = a{k};" for k in range(len(self.initial))]
        heading = f"SEPARATE void {name}_linearize(const Inputs& in, const V* x, V* model)"
        return "\n".join([*dict.fromkeys(tables), function_text(heading, lines)])

    def _scattering(self, prefix: str, part: Part, tables: list[str]) -> list[str]:
        """The statements of copy i that add what is scattered."""
        lines = []
        for number, (places, x) in enumerate(part.scattered):
            at = f"{len(self.initial)} + {_place(f'{prefix}_to{number}', places, tables)}"
            lines.append(f"model[{at}] = model[{at}] + v{x.number};")
        return lines

    def count(self, loops: int = 1) -> int:
        """How many operations that takes, those of a loop in each of its rounds."""
        outside, total = set[int](), 0
        for part in self.parts:
            own, rounds = _varying(self.program, part), len(part.copies.members)
            for sums in _divided(part.sums, loops if own else 1):
                needed = self.program.needed(x.number for _, x in sums)
                operations = {n for n in needed if self.program.nodes[n].operation in OPERATIONS}
                outside |= operations - own
                total += rounds * (len(operations & own) + len(sums))
        return total + len(outside)


def _divided(sums: tuple[tuple[int, Scalar], ...], loops: int) -> list[tuple[tuple[int, Scalar], ...]]:
    """Sums in groups of equal sizes."""
    count = max(1, min(loops, len(sums)))
    ends = [len(sums) * k // count for k in range(count + 1)]
    return [sums[begin:end] for begin, end in itertools.pairwise(ends)]


def _loop(count: int, body: Sequence[str], sums: Sequence[tuple[int, Scalar]]) -> list[str]:
    """Add up over all copies: first within runs of about √count, whose sums are then added. Of 32 rows that halves the
    rounding, by which gradients are told from zero."""
    run = round(count**0.5)
    within = [*body, *(f"b{k} = b{k} + v{x.number};" for k, x in sums)]
    return [
        f"for (long first = 0; first < {count}; first += {run}) {{",
        *(f"    V b{k} = V{{}};" for k, _ in sums),
        f"    const long end = first + {run} < {count} ? first + {run} : {count};",
        "    for (long i = first; i < end; i++) {",
        *(f"        {line}" for line in within),
        "    }",
        *(f"    a{k} = a{k} + b{k};" for k, _ in sums),
        "}",
    ]


def _varying(program: Program, part: Part) -> set[int]:
    """The nodes of a part that are others in each copy."""
    found: set[int] = set()
    for number in program.needed(x.number for x in part.scalars):
        node = program.nodes[number]
        if _is_leaf(node, part.copies) or any(operand in found for operand in node.operands):
            found.add(number)
    return found


def _is_leaf(node: Node, copies: Copies) -> bool:
    return node.operation == "input" and node.detail[0] == copies.number


def reader(sources: Mapping[int, Source]) -> Callable[[Node, list[str]], str]:
    """The expression of an input, or of a lookup with its operands."""

    def read(node: Node, operands: list[str]) -> str:
        source = sources[node.detail[0]]
        if node.operation == "lookup":
            return source.looked_up(operands[0])
        return source.read(str(node.detail[1]), node.kind)

    return read


def _leaf_reader(name: str, copies: Copies, sources: Mapping[int, Source], tables: list[str]) -> Callable[[Node], str]:
    """The expression of a number of which copy i has its own; what is not evenly spaced goes to a table."""

    def read(node: Node) -> str:
        number = node.detail[1]
        leaf = copies.leaves[number]
        if leaf.tensor is None:
            return f"splat({_table(f'{name}_{number}', 'real', [literal(x) for x in leaf.entries], tables)})"
        return sources[leaf.tensor].read(_place(f"{name}_{number}", leaf.entries, tables), leaf.kind)

    return read


def _place(name: str, entries: Sequence[float], tables: list[str]) -> str:
    """The expression of a place, of each copy i its own."""
    spaced = affine(entries)
    if spaced is None:
        return _table(name, "int", [f"{x}" for x in entries], tables)
    first, step = spaced
    return f"{first} + i * {step}" if step else f"{first}"


def _table(name: str, type_: str, entries: Sequence[str], tables: list[str]) -> str:
    """The expression of what a table of this name has for copy i."""
    tables.append(f"static const {type_} {name}[] = {{{', '.join(entries)}}};")
    return f"{name}[i]"

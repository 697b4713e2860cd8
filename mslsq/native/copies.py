"""Which parts of a scalar program are copies of one another, with other entries of the data: they become a loop.

The residual of a curve fit, written down, is the same few operations for every point. Two parts are copies if their
operations are, and if their leaves differ in entries of data and in constants only. What is equal in all copies (what
depends on the variables alone) is computed once, before the loop.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from mslsq.native.operations import OPERATIONS
from mslsq.native.scalars import Kind, Node, Program, Scalar


@dataclass(frozen=True)
class Leaf:
    """A number of which every copy has its own: an entry of an input, or a constant."""

    kind: Kind
    tensor: int | None
    """The input; None where these are constants."""
    entries: tuple[float, ...]
    """By copy the entry of the input, or the constant."""


@dataclass(frozen=True)
class Copies:
    """Parts of a program that are copies of one.

    Attributes:
        number: under which the one reads its leaves, as input tensor `number` with an entry for each of `leaves`.
        outputs: of the one.
        members: which parts these are, in the order of the leaves' entries.
    """

    number: int
    outputs: tuple[Scalar, ...]
    leaves: tuple[Leaf, ...]
    members: tuple[int, ...]


class Copying:
    """Finds the copies among parts of a program.

    Args:
        data: the inputs of which copies may read other entries; of all others they read the same.
        first_number: the first of the numbers that no input has.
    """

    def __init__(self, program: Program, data: frozenset[int], first_number: int):
        self._program, self._data, self._next = program, data, first_number
        self._forms: list[int] = []
        self._known: dict[Hashable, int] = {}

    def found(self, parts: Sequence[Sequence[Scalar]], keys: Sequence[Hashable]) -> list[Copies]:
        """All parts, each among its copies; those with different keys are no copies."""
        self._learn_forms()
        groups: dict[Hashable, list[_Group]] = {}
        for part, (outputs, key) in enumerate(zip(parts, keys, strict=True)):
            numbers = tuple(x.number for x in outputs)
            form = key, tuple(self._forms[n] for n in numbers)
            if not any(group.take(part, numbers) for group in groups.setdefault(form, [])):
                groups[form].append(_Group(self._program, self._forms, part, numbers))
        every = [group for found in groups.values() for group in found]
        every += [alone for group in every for alone in group.without_unsound()]
        ordered = sorted(every, key=lambda group: group.members[0])
        return [self._copies(group) for group in ordered]

    def _learn_forms(self) -> None:
        """A number for each node that those have in common which may be copies of one another."""
        for node in self._program.nodes[len(self._forms) :]:
            self._forms.append(self._known.setdefault(self._form(node), len(self._known)))

    def _form(self, node: Node) -> Hashable:
        if node.operation == "input" and node.detail[0] in self._data:
            return node.operation, node.kind, node.detail[0]
        if node.operation == "constant" and node.kind == "real":
            return node.operation, node.kind
        operands = [self._forms[operand] for operand in node.operands]
        if node.operation in OPERATIONS and OPERATIONS[node.operation].commutes:
            operands.sort()
        detail = (repr(node.detail),) if node.operation == "constant" else node.detail
        return node.operation, node.kind, tuple(operands), detail

    def _copies(self, group: "_Group") -> Copies:
        """The first of a group with its own leaves as inputs, so that nothing is folded that holds for it alone."""
        program, number = self._program, self._next
        self._next += 1
        known: dict[int, int] = {}
        leaves: list[Leaf] = []
        for own, others in group.differing():
            node = program.nodes[own]
            if node.operation == "constant":
                leaves.append(Leaf(node.kind, None, tuple(float(program.nodes[n].detail[0]) for n in others)))
                known[own] = program.input(number, len(leaves) - 1, node.kind).number
            elif node.operation == "input":
                entries = tuple(program.nodes[n].detail[1] for n in others)
                leaves.append(Leaf(node.kind, node.detail[0], entries))
                known[own] = program.input(number, len(leaves) - 1, node.kind).number
            else:
                known[own] = self._made(node, [known.get(operand, operand) for operand in node.operands])
        outputs = tuple(Scalar(program, known.get(n, n)) for n in group.outputs)
        return Copies(number, outputs, tuple(leaves), tuple(group.members))

    def _made(self, node: Node, operands: list[int]) -> int:
        if node.operation == "lookup":
            return self._program.lookup(node.detail[0], Scalar(self._program, operands[0]), node.kind).number
        if node.operation == "table":
            return self._program.table([Scalar(self._program, operand) for operand in operands]).number
        return self._program.make(node.operation, *operands)


class _Group:
    """Parts that are copies of the first."""

    def __init__(self, program: Program, forms: list[int], part: int, outputs: tuple[int, ...]):
        self._program, self._forms, self.outputs = program, forms, outputs
        self.members = [part]
        self._matches: list[dict[int, int]] = [{}]
        self._parts = [outputs]

    def take(self, part: int, outputs: tuple[int, ...]) -> bool:
        """Add a part if it is a copy."""
        match = self._match(outputs)
        if match is None:
            return False
        self.members.append(part)
        self._matches.append(match)
        self._parts.append(outputs)
        return True

    def _match(self, outputs: tuple[int, ...]) -> dict[int, int] | None:
        """By node of the first part the node in its place; None where one would stand in two places."""
        match: dict[int, int] = {}
        stack = list(zip(self.outputs, outputs, strict=True))
        while stack:
            own, other = stack.pop()
            if own in match:
                if match[own] != other:
                    return None
                continue
            match[own] = other
            if own != other:
                stack.extend(self._operands(own, other))
        return match

    def _operands(self, own: int, other: int) -> Iterator[tuple[int, int]]:
        """Operands in corresponding places: those that commute stand in any order."""
        node, its = self._program.nodes[own], self._program.nodes[other]
        mine, yours = node.operands, its.operands
        if node.operation in OPERATIONS and OPERATIONS[node.operation].commutes:
            (a, b), (c, d) = mine, yours
            crossed = (self._forms[a], self._forms[b]) == (self._forms[d], self._forms[c])
            straight = (self._forms[a], self._forms[b]) == (self._forms[c], self._forms[d])
            if crossed and (not straight or a == d or b == c):
                yours = (d, c)
        return zip(mine, yours, strict=True)

    def without_unsound(self) -> list["_Group"]:
        """Take out the copies in which a node that others do not share is shared, though a leaf of it is another one
        elsewhere: each is a group of its own."""
        differing = [own for own, _ in self.differing()]
        unsound = [k for k, match in enumerate(self._matches) if not self._is_sound(match, differing)]
        alone = [_Group(self._program, self._forms, self.members[k], self._parts[k]) for k in unsound]
        for k in reversed(unsound):
            del self.members[k], self._matches[k], self._parts[k]
        return alone

    def _is_sound(self, match: dict[int, int], differing: list[int]) -> bool:
        nodes = self._program.nodes
        return all(
            sorted(match.get(operand, operand) for operand in nodes[own].operands)
            == sorted(nodes[match.get(own, own)].operands)
            for own in differing
        )

    def differing(self) -> Iterator[tuple[int, list[int]]]:
        """The nodes of the first part in whose place some copy has another, with those of all copies; operands first.

        A node that all have in common is none of them, even where it reads what is a leaf elsewhere.
        """
        for own in self._program.needed(self.outputs):
            others = [match.get(own, own) for match in self._matches]
            if any(other != own for other in others):
                yield own, others


def affine(entries: Sequence[float]) -> tuple[int, int] | None:
    """(first, step) of entries that are evenly spaced, as places in memory are; None where they are not."""
    first, step = int(entries[0]), int(entries[1] - entries[0]) if len(entries) > 1 else 0
    return (first, step) if all(x == first + k * step for k, x in enumerate(entries)) else None

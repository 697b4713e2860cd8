"""The tables of a native program of whole problems: where the numbers of a problem are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a problem are.

    Attributes:
        unknowns: numbers of each unknown.
        own: by input of which each problem has its own part, how many numbers, and whether they are real.
        shared: how many inputs all problems share.
        state: numbers of the state, and the places of some; `creep` is -1 where nothing is said to creep.
        matrix: the place of every entry of the matrix in the state, row by row.
    """

    unknowns: tuple[int, ...]
    own: tuple[tuple[int, bool], ...]
    shared: int
    state: int
    cost: int
    status: int
    steps: int
    matrix: tuple[int, ...]
    creep: int = -1
    patience: float = 0.0
    """A problem creeps whose number at `creep` is at least that."""

    def text(self, name: str) -> str:
        """The tables of it."""
        own = [(size, True) for size in self.unknowns] + list(self.own)
        data = sum(size for size, is_real in self.own if is_real)
        integers = sum(size for size, is_real in self.own if not is_real)
        sizes = (self.state, data, integers, len(own), len(self.unknowns))
        sizes += (self.cost, self.status, self.steps, self.creep, len(self.matrix), self.patience)
        return "\n".join(
            [
                f"static const Sizes {name}_sizes = {{{', '.join(map(str, sizes))}}};",
                f"static const Own {name}_own[] = {{{', '.join(f'{{{n}, {int(real)}}}' for n, real in own)}}};",
                f"static const long {name}_places[] = {{{', '.join(map(str, self.matrix)) or '0'}}};",
            ]
        )


@dataclass(frozen=True)
class Table:
    """What a program that maps a function over problems is given, and returns.

    Attributes:
        own: by tensor of which each problem has its own part, how many numbers, and whether they are real.
        arguments: how many of these are read as the state of the function, one behind the other.
        outputs: numbers of a problem in each tensor that is returned.
        sums: how many numbers behind them are added up over problems.
    """

    own: tuple[tuple[int, bool], ...]
    arguments: int
    outputs: tuple[int, ...]
    sums: int = 0

    def text(self, name: str) -> str:
        """The tables of it."""
        given, data = self.own[: self.arguments], self.own[self.arguments :]
        sizes = [len(self.own), self.arguments, sum(size for size, _ in given)]
        sizes += [sum(size for size, is_real in data if is_real == wanted) for wanted in (True, False)]
        sizes += [len(self.outputs), sum(self.outputs), self.sums]
        own = ", ".join(f"{{{size}, {int(is_real)}}}" for size, is_real in self.own)
        return "\n".join(
            [
                f"static const Extents {name}_extents = {{{', '.join(map(str, sizes))}}};",
                f"static const Own {name}_own[] = {{{own}}};",
                f"static const long {name}_outputs[] = {{{', '.join(map(str, self.outputs)) or '0'}}};",
            ]
        )

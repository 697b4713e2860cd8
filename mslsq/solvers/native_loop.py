"""The loop around a start and steps that are one native call each, in memory of its own: no tensor is made in between.

A step of 16 poses takes 12 µs; the 32 tensors around it, which every other loop makes, take 25.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearization
from mslsq.native.graphs.arrays import contiguous
from mslsq.native.graphs.calling import laid_out
from mslsq.native.graphs.whole import Buffer, Place, WholeCall
from mslsq.private import empty_maker
from mslsq.solution import History, Status
from mslsq.solvers.solver import Creep
from mslsq.solvers.state import NUM_EVALUATIONS, NUM_STEPS, STATUS, Record

OF_RECORD, REALS = len(Record._fields), len(Record._fields) - 1
GRADIENT_NORM = Record._fields.index("gradient_norm")
NUMBERS = {torch.float64: ctypes.c_double, torch.float32: ctypes.c_float}


NOTHING = WholeCall(None, (), (), (), (), 0, 0)
"""In place of a step that there is not."""


class Ended(NamedTuple):
    """The end of the loop."""

    values: Values
    """(1, count, storage) of every unknown."""
    cost: float
    status: int
    num_steps: int
    num_evaluations: int
    records: tuple[torch.dtype, bytes, bytes]
    """Of the start and every step: the dtype and numbers of all but acceptance, and that. Few solutions are asked."""
    max_steps: int
    interrupted: bool
    """By a KeyboardInterrupt?"""

    def fields(self) -> dict[str, Any]:
        """The fields of a solution that the solver knows, but its value."""
        status = self.status
        if status == Status.RUNNING:
            status = int(Status.INTERRUPTED if self.interrupted else Status.MAX_STEPS)
        dtype, numbers, flags = self.records
        figures = torch.frombuffer(bytearray(numbers), dtype=dtype).view(-1, REALS)
        rest = (0, self.max_steps + 1 - len(figures))
        accepted = pad(torch.frombuffer(bytearray(flags), dtype=torch.bool), rest, value=False)
        cost, gradient_norm, step_norm, damping = pad(figures.T, rest, value=torch.nan).clone().unbind()
        return {
            "cost": torch.tensor(self.cost, dtype=dtype, device="cpu"),
            "status": torch.tensor(status, device="cpu"),
            "num_steps": torch.tensor(self.num_steps, device="cpu"),
            "num_evaluations": torch.tensor(self.num_evaluations, device="cpu"),
            "gradient_norm": figures[-1, GRADIENT_NORM].clone(),
            "differentiable": torch.tensor(Status.COST_TOLERANCE <= status <= Status.STEP_TOLERANCE, device="cpu"),
            "history": History(cost, gradient_norm, step_norm, damping, accepted),
        }


class _Read(NamedTuple):
    """How an input of the start is read: all of it None where it is not."""

    strides: tuple[int, ...] | None
    slot: int | None
    """Among the pointers."""
    size: int
    """Bytes that go into the state, as the start leaves them as they are."""

    @staticmethod
    def of(place: Place | None, own: Place | None) -> "_Read":
        read = place or own
        size = 0 if own is None else own.bytes
        return _Read(None if read is None else read.strides, None if place is None else place.slot, size)


class NativeLoop:
    """A start and a step, of one problem, whose states lie in two places in turn. In as many threads as call it.

    Args:
        step: None where none has been recorded: for problems that begin at their solutions.
        count: how many unknowns there are.
    """

    def __init__(self, start: WholeCall, step: WholeCall | None, count: int):
        self.start, self.step, self.count = start, step, count
        self.state = len(start.outputs) - OF_RECORD
        self.places = _state_places(start, count)
        """Of the state."""
        self.dtype = self.places[count].dtype
        outputs = enumerate(start.outputs[: self.state])
        self.of_start_values = [self.places[k] if output == k else None for k, output in outputs]
        """Values that the start leaves as they are."""
        self.reads = [
            _Read.of(start.inputs[k], self.of_start_values[k] if k < count else None) for k in range(len(start.inputs))
        ]
        """Of every input of the start how it is read..."""
        later = enumerate(() if step is None else step.inputs[self.state :])
        self.reads_of_steps = [(count + k, place.slot, place.strides) for k, place in later if place is not None]
        """... and of those of a step its number among these, its slot and its strides."""
        values = self.places[:count]
        self._empty = [empty_maker(place.shape, contiguous(place.shape), place.dtype) for place in values]
        self._spare: list[_Memory] = []

    @staticmethod
    def of(start: WholeCall, step: WholeCall | None, count: int) -> "NativeLoop | None":
        """The loop; None where a step does not read what is left to it, or leaves something else."""
        state = len(start.outputs) - OF_RECORD
        places = _state_places(start, count)
        if len(places) < state or not all(place.is_contiguous for place in places[:count]):
            return None
        if not all(isinstance(output, Place) for output in start.outputs[state:]):
            return None
        if step is None:
            return NativeLoop(start, step, count)
        if len(step.outputs) != len(start.outputs) or len(step.inputs) - state != len(start.inputs) - count:
            return None
        for k, (place, output, read) in enumerate(zip(places, step.outputs, step.inputs, strict=False)):
            if output != k and not (isinstance(output, Place) and output.is_like(place)):
                return None
            if read is not None and not read.is_like(place):
                return None
        records = step.outputs[state:]
        is_left = all(isinstance(output, Place) or (output is not None and output < state) for output in records)
        return NativeLoop(start, step, count) if is_left else None

    def solve(
        self, values: Values, given: Sequence[Tensor], max_steps: int, creep: Creep | None = None
    ) -> Ended | None:
        """The end of a solve; None where the calls are not for these tensors, where the gradient is exactly zero at
        the start of one that is to take steps, or where it creeps.

        Args:
            values: the start of every unknown, (1, count, storage).
            given: the inputs of all terms, in the layout of the lanes.
            creep: how that is told.
        """
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = _Memory(self, max_steps)
        if memory.rows <= max_steps:
            memory = _Memory(self, max_steps)
        held = memory.begin(self, values, given)
        if self.start.function(memory.of_start, memory.scratch):
            return None
        memory.note(0, memory.after_start, memory.of_start_record)
        if max_steps and not memory.gradient_norm.value:
            return None
        if self.step is None and max_steps and memory.counts[0][0].value == Status.RUNNING:
            return None
        function, scratch = None if self.step is None else self.step.function, memory.scratch
        at = done = 0
        interrupted = False
        try:
            while function is not None and done < max_steps and memory.counts[at][0].value == Status.RUNNING:
                if function(memory.of_steps[at], scratch):
                    return None
                memory.note(done + 1, memory.after_steps[at], memory.of_records[at])
                at, done = 1 - at, done + 1
                if creep is not None and memory.method_number(at, creep.place) >= creep.count:
                    return None
        except KeyboardInterrupt:
            interrupted = True  # a step that was not finished has changed nothing: it writes elsewhere
        del held
        return self._ended(memory, at, done, max_steps, interrupted)

    def _ended(self, memory: "_Memory", at: int, done: int, max_steps: int, interrupted: bool) -> Ended:
        found = [empty() for empty in self._empty]
        for x, place, address in zip(found, self.places, memory.state[at], strict=False):
            ctypes.memmove(x.data_ptr(), address, place.bytes)
        figures = ctypes.string_at(memory.figures, (done + 1) * REALS * self.dtype.itemsize)
        accepted = ctypes.string_at(memory.accepted, done + 1)
        cost, (status, steps, evaluations) = memory.costs[at].value, [count.value for count in memory.counts[at]]
        if not interrupted:
            self._spare.append(memory)
        records = self.dtype, figures, accepted
        return Ended(tuple(found), cost, status, steps, evaluations, records, max_steps, interrupted)


def _state_places(start: WholeCall, count: int) -> list[Place]:
    """Where the start leaves each part of the state, values perhaps where they are; fewer where something is left
    elsewhere."""
    outputs = start.outputs[: len(start.outputs) - OF_RECORD]
    places = [start.inputs[k] if output == k and k < count else output for k, output in enumerate(outputs)]
    return [place for place in places if isinstance(place, Place)]


class _Memory:
    """What one solve takes besides tensors, kept for the next."""

    def __init__(self, loop: NativeLoop, max_steps: int):
        start, step, state = loop.start, loop.step or NOTHING, loop.state
        real, number = loop.dtype.itemsize, NUMBERS[loop.dtype]
        sizes = [place.bytes for place in loop.places]
        self.rows = max_steps + 1
        self._kept = [Buffer(sizes), Buffer(sizes), Buffer([self.rows * REALS * real, self.rows])]
        self._kept += [Buffer([max(start.scratch, step.scratch, 1)]), Buffer([8] * 3 * OF_RECORD)]
        first, second, history, (self.scratch,), records = [buffer.addresses for buffer in self._kept]
        self.figures, self.accepted = history
        stays = [output == k for k, output in enumerate((*step.outputs, *[None] * state)[:state])]
        second = [a if same else b for a, b, same in zip(first, second, stays, strict=True)]
        here = self.state = first, second
        self._start_at, self._step_at = start.pointers(), (step.pointers(), step.pointers())
        self.of_start, self.of_steps = ctypes.addressof(self._start_at), tuple(map(ctypes.addressof, self._step_at))
        for at in range(2):
            for place, address in zip(step.inputs[:state], here[at], strict=False):
                if place is not None:
                    self._step_at[at][place.slot] = address
        calls = (
            (start, self._start_at, first, first),
            *((step, self._step_at[k], here[k], here[1 - k]) for k in range(2)),
        )
        found = [_outputs(loop, *call, records[OF_RECORD * k :]) for k, call in enumerate(calls)]
        self.after_start, *after_steps = [copies for copies, _ in found]
        self.after_steps = tuple(after_steps)
        self.of_start_record, *of_records = [fields for _, fields in found]
        self.of_records = tuple(of_records)
        self._row, self._method = REALS * real, loop.count + len(Linearization._fields)
        self._number = number
        places = [state + k for k in (STATUS, NUM_STEPS, NUM_EVALUATIONS)]
        self.counts = [[ctypes.c_int64.from_address(own[k]) for k in places] for own in here]
        self.costs = [number.from_address(own[loop.count]) for own in here]
        self.gradient_norm = number.from_address(self.figures + real * GRADIENT_NORM)

    def begin(self, loop: NativeLoop, values: Values, given: Sequence[Tensor]) -> list[Tensor]:
        """Say where the tensors of a solve are; returns what must live as long."""
        held: list[Tensor] = [*values, *given]
        start, (first, second) = self._start_at, self._step_at
        for k, (x, (strides, slot, size)) in enumerate(zip(held, loop.reads, strict=True)):
            if strides is None:
                continue
            if x.stride() != strides or x.is_neg():
                x = held[k] = laid_out(x, strides)
            if slot is not None:
                start[slot] = x.data_ptr()
            if size:
                ctypes.memmove(self.state[0][k], x.data_ptr(), size)
        for k, slot, strides in loop.reads_of_steps:
            x = held[k]
            if x.stride() != strides:
                x = laid_out(x, strides)
                held.append(x)
            first[slot] = second[slot] = x.data_ptr()
        return held

    def method_number(self, at: int, place: int) -> float:
        """A number of the method's state."""
        return self._number.from_address(self.state[at][self._method + place]).value

    def note(self, row: int, copies: "Copies", fields: list[int]) -> None:
        """What a call has left goes to all places that it is for, and its record to the history."""
        for into, from_, size in copies:
            ctypes.memmove(into, from_, size)
        at, real = self.figures + row * self._row, self._row // REALS
        for k in range(REALS):
            ctypes.memmove(at + k * real, fields[k], real)
        ctypes.memmove(self.accepted + row, fields[REALS], 1)


Copies = list[tuple[int, int, int]]
"""Into where, from where, how many bytes."""


def _outputs(
    loop: NativeLoop, call: WholeCall, pointers: Any, read: Sequence[int], written: Sequence[int], rest: Sequence[int]
) -> tuple[Copies, list[int]]:
    """Say where the outputs of a call go. Returns what is to be copied after it, being in two places of the state, and
    where the fields of its record are then."""
    by_slot: dict[int, int] = {}
    copies: Copies = []
    for output, place, address in zip(call.outputs, loop.places, written, strict=False):
        if isinstance(output, Place):
            if output.slot in by_slot:
                copies.append((address, by_slot[output.slot], place.bytes))
            else:
                pointers[output.slot] = by_slot[output.slot] = address
    fields: list[int] = []
    for output, address in zip(call.outputs[loop.state :], rest, strict=False):
        if isinstance(output, int):
            fields.append(read[output])
            continue
        assert isinstance(output, Place)
        if output.slot not in by_slot:
            pointers[output.slot] = by_slot[output.slot] = address
        fields.append(by_slot[output.slot])
    return copies, fields

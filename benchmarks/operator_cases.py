"""Residuals made of one PyTorch operator each, from OpInfo's samples: what the operator survey and its long run try.

OpInfo (`torch.testing._internal`) is PyTorch's own table of operators with inputs that exercise them. A sample becomes
a residual r(p, *data) of three unknowns: every floating tensor of the sample is t₀ + D p with fixed random D, or is
data, or a constant, by the variant. The truth is plain reverse mode of `torch.autograd`, one lane at a time.
"""

import dataclasses
import itertools
import random
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

UNKNOWNS, LANES = 3, 3
MOST_ROWS = 24
"""Larger outputs are projected: a fixed matrix keeps every entry in play at a fraction of the rows."""
MOST_ENTRIES = 6000


def operators() -> list[Any]:
    """OpInfo's table, of the operators with a derivative."""
    if "expecttest" not in sys.modules:  # imported by PyTorch's test utilities, used by none that are needed here
        stub: Any = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_autograd]


@dataclasses.dataclass(eq=False)
class Case:
    """One operator on one sample as a residual. `data` has a leading axis of lanes where `mapped` says so."""

    name: str
    dtype: torch.dtype
    sample: int
    variant: str
    call: Any
    leaves: list[Any]
    spec: Any
    places: list[int]
    active: list[int]
    directions: dict[int, Tensor]
    points: Tensor
    data: tuple[Tensor, ...]
    mapped: bool
    summary: str
    projection: Tensor | None = None

    @property
    def label(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} sample {self.sample} {self.variant}"

    def residual(self, p: Tensor, *data: Tensor) -> Tensor:
        leaves = list(self.leaves)
        given = iter(data)
        for place in self.places:
            if place in self.directions:
                base, D = self.leaves[place], self.directions[place].to(p.dtype)
                step = D @ p
                if base.is_complex():
                    step = torch.complex(*step.chunk(2))
                leaves[place] = base + step.reshape(base.shape)
            elif self.mapped:
                leaves[place] = next(given)
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.vector(self.call(*args, **kwargs), p.dtype)

    def vector(self, output: Any, dtype: torch.dtype) -> Tensor:
        parts = []
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                leaf = torch.stack([leaf.real, leaf.imag], -1) if leaf.is_complex() else leaf
                parts.append(leaf.reshape(-1).to(dtype))
        vector = torch.cat(parts)
        if len(vector) > MOST_ROWS:
            if self.projection is None:
                generator = torch.Generator().manual_seed(5)
                matrix = torch.randn(MOST_ROWS, len(vector), generator=generator, dtype=torch.float64)
                self.projection = (matrix / len(vector) ** 0.5).to(dtype)
            vector = torch.as_tensor(self.projection, dtype=dtype) @ vector
        return vector

    def in_double(self) -> "Case":
        """The same in float64: the truth."""

        def double(x: Any) -> Any:
            if isinstance(x, Tensor) and x.is_complex():
                return x.to(torch.complex128)
            return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

        dtype = torch.complex128 if self.dtype.is_complex else torch.float64
        return dataclasses.replace(
            self,
            dtype=dtype,
            leaves=[double(x) for x in self.leaves],
            directions={k: double(v) for k, v in self.directions.items()},
            points=self.points.double(),
            data=tuple(double(x) for x in self.data),
            projection=None,
        )


def cases(
    op: Any, dtype: torch.dtype, seed: int, samples: int, variants: bool = True, at_random: bool = False
) -> Iterator[Case]:
    """Residuals of an operator: `samples` of OpInfo's, spread over its list or drawn, each with every variant."""
    torch.manual_seed(seed)
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 200))
    usable = [(k, s) for k, s in enumerate(found) if tensors_of(s)]
    if not usable:
        return
    # The middle of the list too: samples of one kind stand together.
    chosen = sorted({round(k * (len(usable) - 1) / max(1, samples - 1)) for k in range(samples)})
    if at_random:
        chosen = random.Random(f"{seed} {op.formatted_name} {dtype}").sample(
            range(len(usable)), min(samples, len(usable))
        )
    for k in chosen:
        number, sample = usable[k]
        yield from cases_of_sample(op, dtype, number, sample, seed, variants)


def tensors_of(sample: Any) -> list[int]:
    leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
    places = [k for k, x in enumerate(leaves) if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
    places = [k for k in places if leaves[k].layout == torch.strided and leaves[k].numel() > 0]
    return places if sum(leaves[k].numel() for k in places) <= MOST_ENTRIES else []


def cases_of_sample(op: Any, dtype: torch.dtype, number: int, sample: Any, seed: int, variants: bool) -> Iterator[Case]:
    args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
    places = tensors_of(sample)
    process = sample.output_process_fn_grad

    def call(*args: Any, **kwargs: Any) -> Any:
        wrapper = op.gradcheck_wrapper
        return process(wrapper(op.op, *args, **kwargs))

    generator = torch.Generator().manual_seed(seed)
    real = torch.float32 if dtype in (torch.float32, torch.complex64) else torch.float64

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(real)

    wide = {k: leaves[k].numel() * (2 if leaves[k].is_complex() else 1) for k in places}
    directions = {k: random(wide[k], UNKNOWNS) for k in places}
    points = 0.02 * random(LANES, UNKNOWNS)
    near = {}
    for k in places:
        step = 0.005 * random(LANES, wide[k])
        step = torch.complex(*step.chunk(2, -1)) if leaves[k].is_complex() else step
        near[k] = leaves[k] + step.reshape(LANES, *leaves[k].shape).to(leaves[k].dtype)
    shapes = [tuple(leaves[k].shape) for k in places]
    rest = {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}
    summary = f"{op.formatted_name}, shapes {shapes}, {rest or 'no keywords'}"[:300]
    chosen: list[tuple[str, list[int], bool]] = [("all", places, False)]
    if variants and len(places) > 1:
        for position, k in enumerate(places[:3]):
            chosen += [(f"of {position}, rest constant", [k], False), (f"of {position}, rest data", [k], True)]
    for variant, active, mapped in chosen:
        data = tuple(near[k] for k in places if k not in active) if mapped else ()
        yield Case(
            op.formatted_name, dtype, number, variant, call, leaves, spec, places, active,
            {k: directions[k] for k in active}, points, data, mapped, summary,
        )  # fmt: skip


# ---- the truth


def value(case: Case, lane: int, p: Tensor | None = None) -> Tensor:
    p = case.points[lane] if p is None else p
    return case.residual(p, *(d[lane] for d in case.data))


def jacobian(case: Case, lane: int) -> Tensor:
    """Row by row, plain reverse mode."""
    p = case.points[lane].clone().requires_grad_()
    with torch.enable_grad():
        r = value(case, lane, p)
        if not r.requires_grad:
            return torch.zeros(len(r), len(p), dtype=r.dtype)
        rows = [torch.autograd.grad(x, p, retain_graph=True, allow_unused=True)[0] for x in r]
    return torch.stack([torch.zeros_like(p) if row is None else row for row in rows]).detach()


def gradient(case: Case, lane: int, p: Tensor, create_graph: bool = False) -> Tensor:
    """∇ ½‖r‖² by plain reverse mode."""
    with torch.enable_grad():
        r = value(case, lane, p)
        if not r.requires_grad:
            return torch.zeros_like(p)
        found = torch.autograd.grad(0.5 * (r * r).sum(), p, create_graph=create_graph, allow_unused=True)[0]
    return torch.zeros_like(p) if found is None else found


def hessian(case: Case, lane: int) -> tuple[Tensor, str]:
    """∇² ½‖r‖² by reverse over reverse, or by central differences of the gradient where that cannot be."""
    p = case.points[lane].clone().requires_grad_()
    try:
        g = gradient(case, lane, p, create_graph=True)
        if not g.requires_grad:
            return torch.zeros(len(p), len(p), dtype=p.dtype), "reverse"
        rows = [torch.autograd.grad(x, p, retain_graph=True, allow_unused=True)[0] for x in g]
        return torch.stack([torch.zeros_like(p) if row is None else row for row in rows]).detach(), "reverse"
    except Exception:
        return hessian_by_differences(case, lane), "differences"


def hessian_by_differences(case: Case, lane: int, h: float = 1e-5) -> Tensor:
    columns = []
    for e in torch.eye(UNKNOWNS, dtype=case.points.dtype):
        up = gradient(case, lane, (case.points[lane] + h * e).requires_grad_())
        down = gradient(case, lane, (case.points[lane] - h * e).requires_grad_())
        columns.append((up - down) / (2 * h))
    return torch.stack(columns, -1).detach()


def jacobian_by_differences(case: Case, lane: int, h: float = 1e-6) -> Tensor:
    with torch.no_grad():
        eye = torch.eye(UNKNOWNS, dtype=case.points.dtype)
        return torch.stack(
            [
                (value(case, lane, case.points[lane] + h * e) - value(case, lane, case.points[lane] - h * e)) / (2 * h)
                for e in eye
            ],
            -1,
        )

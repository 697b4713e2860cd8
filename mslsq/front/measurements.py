"""Measured points of curve fits: which count, what they weigh, how a batch of them is laid out."""

from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import vmap

from mslsq import pytree
from mslsq.front.batching import shape_of_one, taken_apart
from mslsq.levels import at_the_bottom
from mslsq.private import transforms_are_active
from mslsq.problem.errors import DtypeError, ProblemError, ShapeError
from mslsq.solvers import Solver
from mslsq.solvers.outer import OuterSolver
from mslsq.validation import made_a_tensor, one_of


class Points(NamedTuple):
    """What a fit needs, missing points replaced by harmless numbers."""

    t: Any
    y: Tensor
    whitening: Tensor
    """1/sigma of every point, or W with WᵀW the inverse covariance; zero for missing points."""
    used: Tensor


NanPolicy = Literal["omit", "raise", "propagate"]


def may_ask(solver: Any, y: Any) -> bool:
    """May numbers of a fit be read, to say what is wrong with them? Of another device than a CPU not where the solver
    takes a fixed number of steps: then the results tell."""
    inner = solver.solver if isinstance(solver, OuterSolver) else solver
    if not isinstance(inner, Solver) or inner.early_stop:
        return True
    return all(leaf.device.type == "cpu" for leaf in pytree.leaves(y) if isinstance(leaf, Tensor))


def check_finite(policy: str, **data: Any) -> None:
    """With "raise", an error that names the first entry that is NaN or infinite; also under transforms, of all that
    they map."""
    one_of("nan_policy", policy, get_args(NanPolicy), ProblemError)
    for name, tree in data.items() if policy == "raise" else ():
        for leaf in pytree.leaves(tree):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                at_the_bottom(leaf, lambda tensor, name=name: _finite(name, tensor))


def _finite(name: str, tensor: Tensor) -> Tensor:
    wrong = (~torch.isfinite(tensor)).nonzero()
    if len(wrong):
        where = wrong[0].tolist()
        first = float(tensor[tuple(where)])
        raise ProblemError(
            f"{name} has {len(wrong)} entries that are NaN or infinite, the first at {where}: {first}. "
            "nan_policy='omit' leaves out points whose y is NaN."
        )
    return tensor


class Measurements:
    """The points of all fits, `in_dims` over (t, y, p0, sigma), and the mask that goes with y."""

    def __init__(
        self,
        t: Any,
        y: Tensor,
        p0: Any,
        sigma: Tensor | None,
        mask: Tensor | None,
        in_dims: Any,
        fill: bool = True,
        nan_policy: NanPolicy = "omit",
    ):
        """`fill`: is a t as long as y of the points of y? Then missing points get that of another."""
        self._fill, self._omit = fill, nan_policy != "propagate"
        if isinstance(in_dims, (tuple, list)):
            if len(in_dims) not in (3, 4):
                raise ShapeError(
                    f"in_dims={in_dims!r}: give an integer, or a tuple over (t, y, p0, sigma), the last optional."
                )
            in_dims = (*in_dims, None)[:4]
        if isinstance(in_dims, int) and not isinstance(in_dims, bool):
            shared = sigma is None or sigma.ndim == 0
            in_dims = (in_dims, in_dims, in_dims, None if shared else in_dims)
        arguments = taken_apart(t, y, p0, sigma)
        axes = arguments.axes(in_dims)
        self.size = axes.size
        self.t, self.y, self.sigma, self.mask = t, y, sigma, mask
        self._t_leaves, self._t_structure = arguments.leaves[0], arguments.structures[0]
        self.t_dims, (self.y_dim,), p0_dims, (self.sigma_dim,) = axes.of
        self.p0_dims = pytree.unflatten(p0_dims, arguments.structures[2])
        self._one = shape_of_one(y.shape, self.y_dim)
        self._check_sigma()
        self.mask_dim = self._dim_of_mask()

    def _check_sigma(self) -> None:
        if self.sigma is None:
            return
        one, shape = self._one, shape_of_one(self.sigma.shape, self.sigma_dim)
        if shape in ((), one) or (len(one) == 1 and shape == one * 2):
            return
        covariance = f", or {one * 2} for a covariance matrix" if len(one) == 1 else ""
        raise ShapeError(
            f"sigma of one fit has shape {shape}; expected {one}, the shape of y{covariance}. "
            "A batch is declared by in_dims."
        )

    def _dim_of_mask(self) -> int | None:
        mask, one = self.mask, self._one
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            hint = made_a_tensor(mask)
            raise DtypeError(f"mask must be a tensor of bool, True where a point counts.{hint}")
        if tuple(mask.shape) == one:
            return None
        if self.y_dim is not None and mask.shape == self.y.shape:
            return self.y_dim
        either = f"{one}" if self.y_dim is None else f"{tuple(self.y.shape)} or, for all fits, {one}"
        raise ShapeError(f"mask has shape {tuple(mask.shape)}; expected that of y, {either}.")

    def first_t(self) -> Any:
        """t of the first fit."""
        leaves = [
            leaf if dim is None else leaf.select(dim, 0) for leaf, dim in zip(self._t_leaves, self.t_dims, strict=True)
        ]
        return pytree.unflatten(leaves, self._t_structure)

    @property
    def sigma_kind(self) -> str:
        """How the errors of y are given: "none", "number", "each" point its own, or a covariance "matrix"."""
        if self.sigma is None:
            return "none"
        shape = shape_of_one(self.sigma.shape, self.sigma_dim)
        return "number" if shape == () else "each" if shape == self._one else "matrix"

    def prepare(self) -> tuple[Points, Any]:
        """Missing points made harmless, sigma turned into whitening, once per fit and outside the solve; and the
        `in_dims` of t. All else has the batch axis first."""
        # A t that all fits share stays as it is where each may lack other points.
        fixed = self.size is not None and (self.y_dim is not None or self.mask_dim is not None)
        leaves, dims = list(self._t_leaves), list(self.t_dims)
        moves = [
            number
            for number, (leaf, dim) in enumerate(zip(leaves, dims, strict=True))
            if self._fill and isinstance(leaf, Tensor) and not (dim is None and fixed)
        ]
        moving = tuple(leaves[number] for number in moves)
        points, moved_dims = self._prepare(moving, tuple(dims[number] for number in moves))
        for number, leaf, dim in zip(moves, points.t, moved_dims, strict=True):
            leaves[number], dims[number] = leaf, dim
        t = pytree.unflatten(leaves, self._t_structure)
        return points._replace(t=t), pytree.unflatten(dims, self._t_structure)

    def _prepare(self, t: tuple[Tensor, ...], t_dims: tuple[int | None, ...]) -> tuple[Points, tuple[int | None, ...]]:
        """The points, and the `in_dims` of their t."""
        if self.size is None:
            return self._of_one(t, self.y, self.sigma, self.mask), t_dims
        dims = (t_dims, self.y_dim, self.sigma_dim, self.mask_dim)
        if all(dim is None for dim in pytree.leaves(dims)):  # only p0 is mapped: the same points for all fits
            moved, *rest = self._of_one(t, self.y, self.sigma, self.mask)
            return Points(moved, *(part.expand(self.size, *part.shape) for part in rest)), t_dims
        return vmap(self._of_one, in_dims=dims)(t, self.y, self.sigma, self.mask), (0,) * len(t)

    def _of_one(self, t: tuple[Tensor, ...], y: Tensor, sigma: Tensor | None, mask: Tensor | None) -> Points:
        return _prepared(t, y, sigma, mask, self._omit)


def spoiled(t: tuple[Tensor, ...], y: Tensor, whitening: Tensor, used: Tensor) -> Bool[Tensor, ""]:
    """Is a number of a point that counts NaN? Of one fit, whose missing points are harmless already."""
    of_t = [torch.where(_of_points(used, part), part, 0.0) if is_of_points(part, used) else part for part in t]
    return torch.stack([torch.isnan(part).any() for part in (*of_t, y, whitening)]).any()


def is_of_points(part: Tensor, used: Tensor) -> bool:
    """Has a tensor of t an entry for each point?"""
    return part.shape[: used.ndim] == used.shape


def _of_points(used: Tensor, part: Tensor) -> Tensor:
    """`used` beside a tensor of t."""
    return used.reshape(*used.shape, *(1,) * (part.ndim - used.ndim))


def _prepared(t: tuple[Tensor, ...], y: Tensor, sigma: Tensor | None, mask: Tensor | None, omit: bool) -> Points:
    """Of one fit; `omit`: is a point missing whose y is NaN?"""
    used = ~torch.isnan(y.detach()) if omit else torch.ones_like(y, dtype=torch.bool)
    if mask is not None:
        used = used & mask
    # Where a point is missing its t may be anything, log(0) of padding included: 0 · inf in a derivative would spoil
    # the fit.
    first = used.reshape(-1).to(torch.int8).argmax()
    moved = tuple(_filled(part, used, first) for part in t)
    safe = torch.where(used, y, torch.zeros_like(y))
    if sigma is None:
        return Points(moved, safe, used.to(y.dtype), used)
    if sigma.shape == y.shape or sigma.ndim == 0:
        usable = torch.where(used, sigma, torch.ones_like(y))
        usable = torch.where(usable > 0, usable, torch.nan)  # no fit, as with a covariance that is none
        whitening = torch.where(used, 1 / usable, torch.zeros_like(y))
        return Points(moved, safe, whitening, used)
    # The points that are there have their own block of the covariance; the identity stands in for the others.
    both = used[:, None] & used[None, :]
    eye = torch.eye(len(y), dtype=y.dtype, device=y.device)
    matrix = torch.where(both, sigma, eye)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    factor = torch.where((failed == 0) & _is_symmetric(matrix), factor, torch.nan)
    whitening = torch.linalg.solve_triangular(factor, eye, upper=False)
    return Points(moved, safe, torch.where(used[:, None], whitening, torch.zeros_like(whitening)), used)


def _is_symmetric(matrix: Float[Tensor, "points points"]) -> Bool[Tensor, ""]:
    """Up to rounding, also of a product of matrices in single precision."""
    return ((matrix - matrix.mT).abs() <= 1e-4 * matrix.diagonal().abs().amax()).all()


def check_numbers(measurements: Measurements, points: Points, noise: str) -> None:
    """An error that names the first number that is no standard deviation, or no count. (In a batch, and under
    transforms, such a fit is `NON_FINITE`, and the others are what they are.)"""
    if measurements.size is not None or transforms_are_active():
        return
    if noise == "poisson":
        wrong = (points.used & (points.y < 0)).nonzero().tolist()
        if wrong:
            raise ProblemError(
                f"noise='poisson': y must be counts, zero or more; y[{_place(wrong)}] is "
                f"{float(points.y[tuple(wrong[0])]):g}."
            )
    if measurements.sigma is None:
        return
    wrong = (points.whitening.isnan() & ~measurements.sigma.isnan()).nonzero().tolist()
    if not wrong:
        return
    if measurements.sigma_kind == "matrix":
        raise ProblemError("sigma must be a covariance matrix, symmetric and positive definite; this one is not.")
    sigma = measurements.sigma.expand(points.y.shape)
    raise ProblemError(
        f"sigma must be positive, a standard deviation; sigma[{_place(wrong)}] is {float(sigma[tuple(wrong[0])]):g}. "
        "A point that shall not count is left out by mask."
    )


def _place(wrong: list[list[int]]) -> str:
    return ", ".join(map(str, wrong[0]))


def _filled(part: Tensor, used: Tensor, first: Tensor) -> Tensor:
    """t with the entries of missing points replaced by those of the first point that is there."""
    if not is_of_points(part, used):
        return part
    flat = part.reshape(used.numel(), *part.shape[used.ndim :])
    index = first.reshape(1, *(1,) * (flat.ndim - 1)).expand(1, *flat.shape[1:])
    instead = flat.gather(0, index)
    keep = used.reshape(-1, *(1,) * (flat.ndim - 1))
    return torch.where(keep, flat, instead).reshape(part.shape)

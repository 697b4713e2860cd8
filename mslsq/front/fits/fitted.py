"""What was fitted, kept for questions asked afterwards: the points, the parameters, and the model they belong to."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from mslsq import pytree
from mslsq.front.fits.datasets import Sets, in_one_vector
from mslsq.front.fits.parameters import Parameters
from mslsq.front.fits.residual import Noise, residual_of
from mslsq.front.fits.scheme import Scheme
from mslsq.front.measurements import Points
from mslsq.linearize.derivatives import Mode, value_and_jacobian
from mslsq.losses import RobustLoss
from mslsq.problem.errors import ProblemError
from mslsq.solvers import Solver
from mslsq.tracing.graph import TRANSFORM_LOCK


def lost_model(*_: Any) -> Any:
    """In the place of a model that pickle does not take."""
    raise ProblemError(
        "The model of this fit was not pickled with it: pickle takes functions of a module alone, no lambda and no "
        "closure. Values, errors and covariance are there; for the rest fit again, or define the model in a module."
    )


@dataclass(frozen=True, eq=False)
class Recipe:
    """Everything about a fit but its tensors. Two are equal where they are one object."""

    model: Callable[[Any, Any], Any]
    sets: Sets | None
    """Of several sets of data; None of one."""
    free: Parameters
    """Those that the solve varies."""
    parameters: Parameters
    """Those that the model takes: with the ones held and tied."""
    scheme: Scheme | None
    """How they come from those that are free; None where all are."""
    held_dims: tuple[int | None, ...]
    """The batch axis of each tensor that is held."""
    t: Any
    """The pytree behind p, its tensors replaced by places."""
    t_dims: tuple[int | None, ...]
    """The batch axis of each tensor of t; None where all fits share it."""
    batched: bool
    """Does the call have a batch of its own, by in_dims?"""
    sigma: str
    """How the errors of y were given: "none", "number", "each", "matrix"."""
    noise: Noise
    absolute_sigma: bool
    loss: RobustLoss | None
    solver: Solver | None
    mode: Mode
    """How the model is differentiated, as in the solve."""
    notes: tuple[str, ...] | None = None
    """Per entry of the parameters, why it was not varied: "fixed", "tied", or nothing; None where all were."""

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: without a model that cannot be."""
        try:
            pickle.dumps((self.model, self.scheme))
        except Exception:  # each object that cannot be pickled has an error of its own
            return {**vars(self), "model": lost_model, "scheme": None}
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __deepcopy__(self, memo: Any) -> "Recipe":
        return self  # it never changes

    @property
    def places(self) -> list[int]:
        """Of the entries that were varied among those of all parameters."""
        notes = ("",) * self.parameters.count if self.notes is None else self.notes
        return [number for number, note in enumerate(notes) if not note]

    @property
    def residual(self) -> Callable[..., Tensor]:
        """What was minimised."""
        model = self.model if self.sets is None else in_one_vector(self.model, self.sets)
        return residual_of(model, self.scheme, self.noise)

    def p_of(self, free: Float[Tensor, "n"], held: tuple[Tensor, ...]) -> Any:
        """The parameters of one fit, as the model takes them."""
        tree = self.free.tree(free)
        return tree if self.scheme is None else self.scheme.complete(tree, held)

    def t_of(self, tensors: tuple[Tensor, ...]) -> Any:
        """t with these tensors."""
        return pytree.map_leaves(lambda leaf: tensors[leaf.number] if isinstance(leaf, Place) else leaf, self.t)


@dataclass(frozen=True)
class Place:
    """Where a tensor of t was."""

    number: int


class One(NamedTuple):
    """The tensors of one fit."""

    free: Float[Tensor, "n"]
    covariance: Float[Tensor, "n n"]
    t: tuple[Tensor, ...]
    y: Tensor
    whitening: Tensor
    used: Tensor
    held: tuple[Tensor, ...]
    errors_of_t: tuple[Tensor, ...] = ()
    """Of a fit with errors of t its corrections in standard deviations, and these standard deviations, both in the
    shape of t."""
    bounds: tuple[Tensor, ...] = ()
    """Of a fit with bounds the lower and the upper one of each free parameter, (n,)."""


@dataclass(frozen=True)
class Fitted:
    """A pytree: the tensors of all fits, batch axes first, and their recipe."""

    tensors: One
    recipe: Recipe

    @classmethod
    def of(
        cls,
        points: Points,
        held: tuple[Tensor, ...],
        vector: Tensor,
        covariance: Tensor,
        t_dims: Any,
        errors_of_t: tuple[Tensor, ...] = (),
        bounds: tuple[Tensor, ...] = (),
        **recipe: Any,
    ) -> "Fitted":
        """From what a solve was given and has found; `t_dims` is the tree of batch axes of t."""
        leaves, structure = pytree.flatten(points.t)
        dims = pytree.leaves(t_dims) if recipe["batched"] else [None] * len(leaves)
        numbers = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        places = [Place(numbers.index(number)) if number in numbers else leaf for number, leaf in enumerate(leaves)]
        tensors = One(
            vector,
            covariance,
            tuple(leaves[n] for n in numbers),
            points.y,
            points.whitening,
            points.used,
            held,
            errors_of_t,
            bounds,
        )
        frame = pytree.unflatten(places, structure)
        return cls(tensors, Recipe(t=frame, t_dims=tuple(dims[number] for number in numbers), **recipe))

    @property
    def outer(self) -> int:
        """How many batch axes a `vmap` around the call has put in front."""
        return self.tensors.free.ndim - 1 - self.recipe.batched

    @property
    def dims(self) -> One:
        """The batch axes of the tensors within those."""
        more: Any = (0,) * len(self.tensors.errors_of_t), (0,) * len(self.tensors.bounds)
        return One(0, 0, self.recipe.t_dims, 0, 0, 0, self.recipe.held_dims, *more)  # pyright: ignore[reportArgumentType]

    def each(self, function: Callable[..., Any], *others: Any, dims: tuple[int | None, ...] = ()) -> Any:
        """`function(one, *others)` of every fit; `dims` is 0 for those of the others that differ between the fits."""
        if self.recipe.batched:
            function = vmap(function, in_dims=(self.dims, *dims))
        for _ in range(self.outer):
            function = vmap(function, in_dims=(0, *dims))
        with TRANSFORM_LOCK:  # forward-mode levels are global in PyTorch
            return function(self.tensors, *others)

    def of_problem(self, index: tuple[int, ...]) -> "Fitted":
        """One fit of the batch."""
        outer, own = index[: self.outer], index[self.outer :]
        tensors = pytree.map_leaves(lambda tensor: tensor[outer], self.tensors)
        if self.recipe.batched:
            leaves, structure = pytree.flatten(tensors)
            dims = pytree.leaves(self.dims)
            picked = [x if dim is None else x.select(dim, own[0]) for x, dim in zip(leaves, dims, strict=True)]
            tensors = pytree.unflatten(picked, structure)
        t_dims, held_dims = (None,) * len(tensors.t), (None,) * len(tensors.held)
        return Fitted(tensors, replace(self.recipe, batched=False, t_dims=t_dims, held_dims=held_dims))

    def residuals(self, one: One, free: Float[Tensor, "n"]) -> Float[Tensor, "rows"]:
        """What was minimised, of one fit at these free parameters; with errors of t those of t behind those of y."""
        recipe, t = self.recipe, one.t
        if one.errors_of_t:
            u, sigma_t = one.errors_of_t
            t = (t[0] + sigma_t * u,)
        of_y = recipe.residual(recipe.free.tree(free), recipe.t_of(t), one.y, one.whitening, one.used, one.held)
        return torch.cat([of_y.reshape(-1), *(u.reshape(-1) for u in one.errors_of_t[:1])])

    def information_rows(self, one: One) -> Float[Tensor, "points n"]:
        """Rows whose JᵀJ is Fisher's information Σ μ' μ'ᵀ/μ of the counts of one fit."""
        recipe, t = self.recipe, self.recipe.t_of(one.t)
        mean, jacobian = self.with_jacobian(lambda free: flat(recipe.model(recipe.p_of(free, one.held), t)), one)
        used = one.used.reshape(-1)
        mean = torch.where(used, mean, torch.ones_like(mean))
        return torch.where(used[:, None], jacobian / mean.sqrt()[:, None], torch.zeros_like(jacobian))

    def with_jacobian(
        self, function: Callable[[Float[Tensor, "n"]], Tensor], one: One
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows n"]]:
        """A function of the free parameters of one fit, and its Jacobian."""
        return value_and_jacobian(lambda free: function(free).reshape(-1), one.free, self.recipe.mode)


def flat(tree: Any) -> Float[Tensor, "entries"]:
    """All entries of the leaves of a tree, one after the other."""
    return torch.cat([leaf.reshape(-1) for leaf in pytree.leaves(tree)])


def variance(jacobian: Float[Tensor, "rows n"], covariance: Float[Tensor, "n n"]) -> Float[Tensor, "rows"]:
    """The diagonal of J Σ Jᵀ."""
    return torch.einsum("ri,ij,rj->r", jacobian, covariance, jacobian).clamp(min=0)


pytree.register(
    Fitted,
    lambda fitted: ([fitted.tensors], fitted.recipe),
    lambda children, recipe: Fitted(children[0], recipe),
    lambda _: ["tensors"],
)

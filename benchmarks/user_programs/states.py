"""Programs whose residual reads what changes from call to call, or that copy, pickle and share what they solve.

Each yields pairs (what to solve, its start, its other arguments) whenever something has changed; solved several times,
as programs and recordings come into use from the second call on. The answer is SciPy's on the residual called then.
"""

import copy
import dataclasses
import functools
import os
import pickle
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.optimize
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

import mslsq
from user_programs.compared import F64, P2, T, Y, numbers_of, vector

Given = tuple[Callable[..., Any], Tensor, tuple[Any, ...]]
STATES: dict[str, Callable[[], Iterator[Given]]] = {}
CALLS = 4


def changing(program: Callable[[], Iterator[Given]]) -> Callable[[], Iterator[Given]]:
    """Take a program in."""
    STATES[program.__name__] = program
    return program


def judged(name: str, said: Callable[[], bool]) -> str:
    """What is to be looked at; empty where every answer is SciPy's. Nothing is taken back by a warning here."""
    for stage, (residual, start, args) in enumerate(STATES[name]()):
        found = [mslsq.least_squares(residual, start, args).value.detach().double() for _ in range(CALLS)]
        expected = answer(residual, start, args)
        for call, value in enumerate(found):
            if not np.allclose(value.numpy().ravel(), expected, rtol=1e-4, atol=1e-6):
                return f"stage {stage}, call {call}: {value.tolist()}, SciPy {expected.tolist()}"
    return ""


def answer(residual: Callable[..., Any], start: Tensor, args: tuple[Any, ...]) -> np.ndarray:
    """SciPy's, by differences."""

    def numbers(p: np.ndarray) -> np.ndarray:
        return numbers_of(residual(torch.tensor(p, dtype=start.dtype).reshape(start.shape), *args)).numpy()

    first = start.detach().double().numpy().ravel()
    return scipy.optimize.least_squares(numbers, first, xtol=1e-14, ftol=1e-14, gtol=1e-12).x


def decay(p: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) - y


WEIGHTS = [1.0, 0.5]


@changing
def list_of_numbers():
    def residual(p, t, y):
        return torch.cat([w * decay(p, t, k * y) for k, w in enumerate(WEIGHTS, 1)])

    for third in ((), (0.3,), (0.7,)):
        WEIGHTS[2:] = third
        yield residual, P2, (T, Y)


TABLE = {"offset": torch.zeros(20, dtype=F64)}


@changing
def tensor_in_a_dictionary_written_in_place():
    def residual(p, t, y):
        return decay(p, t, y) - TABLE["offset"]

    yield residual, P2, (T, Y)
    TABLE["offset"].add_(0.1)
    yield residual, P2, (T, Y)
    TABLE["offset"].data = 0.2 * T
    yield residual, P2, (T, Y)
    TABLE["offset"] = -0.1 * T
    yield residual, P2, (T, Y)


SHIFT = np.zeros(20)


@changing
def array_written_in_place():
    def residual(p, t, y):
        return decay(p, t, y) - torch.from_numpy(SHIFT)

    for k in range(3):
        SHIFT[:] = 0.1 * k * T.numpy()
        yield residual, P2, (T, Y)


@changing
def memory_shared_with_an_array():
    memory = np.zeros(20)
    shared = torch.from_numpy(memory)

    def residual(p, t, y):
        return decay(p, t, y) - shared

    for k in range(3):
        memory[:] = 0.1 * k * T.numpy()
        yield residual, P2, (T, Y)


@changing
def configuration_changed():
    cfg = OmegaConf.create({"power": 1, "terms": ["a"], "scale": {"t": 1.0}})

    def residual(p, t, y):
        model = decay(p, cfg.scale.t * t**cfg.power, y)
        return torch.cat([model, 0.1 * p]) if "b" in cfg.terms else model

    yield residual, P2, (T, Y)
    cfg.power = 2
    yield residual, P2, (T, Y)
    cfg.terms.append("b")
    yield residual, P2, (T, Y)
    cfg.scale.t = 0.5
    yield residual, P2, (T, Y)


@dataclasses.dataclass
class Inner:
    scale: float = 1.0
    mask: Tensor = dataclasses.field(default_factory=lambda: torch.ones(20, dtype=torch.bool))


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    names: tuple[str, ...] = ("t",)


@changing
def nested_data_classes():
    settings = Outer()

    def residual(p, t, y):
        r = decay(p, settings.inner.scale * t, y)[settings.inner.mask]
        return torch.cat([r, 0.1 * p]) if "prior" in settings.names else r

    yield residual, P2, (T, Y)
    settings.inner.scale = 2.0
    yield residual, P2, (T, Y)
    settings.inner.mask[10:] = False
    yield residual, P2, (T, Y)
    settings.names = ("t", "prior")
    yield residual, P2, (T, Y)
    settings.inner = Inner(scale=0.5)
    yield residual, P2, (T, Y)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, dtype=F64)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("offset", torch.zeros((), dtype=F64))

    def forward(self, p, t, y):
        return p[0] * self.norm(self.drop(torch.exp(-p[1] * t))[:, None])[:, 0] + self.offset - y


@changing
def buffers_of_a_module():
    module = Normed().eval()
    yield module, P2, (T, Y)
    for buffer, number in ((module.norm.running_mean, 0.2), (module.norm.running_var, 0.5)):
        assert buffer is not None
        buffer.fill_(number)
    yield module, P2, (T, Y)
    module.offset = torch.tensor(0.3, dtype=F64)
    yield module, P2, (T, Y)
    module.norm.weight.data.mul_(2)
    yield module, P2, (T, Y)
    module.norm = nn.BatchNorm1d(1, dtype=F64).eval()
    yield module, P2, (T, Y)


@changing
def closures_over_a_loop():
    """All three see the last k, as Python has it."""
    late = []
    for k in (1, 2, 3):
        late.append(lambda p, t, y: decay(p, k * t, y))  # noqa: B023
    for residual in late:
        yield residual, P2, (T, Y)


@changing
def defaults_over_a_loop():
    for residual in [lambda p, t, y, k=k: decay(p, k * t, y) for k in (1, 2, 3)]:
        yield residual, P2, (T, Y)


@changing
def keywords_of_a_partial():
    def model(p, t, y, power):
        return decay(p, t**power, y)

    residual = functools.partial(model, power=1)
    yield residual, P2, (T, Y)
    residual.keywords["power"] = 2
    yield residual, P2, (T, Y)


@changing
def redefined_by_exec():
    for factor in (1.0, 2.0, 0.5):
        space: dict[str, Any] = {"torch": torch}
        exec(f"def residual(p, t, y):\n    return p[0] * torch.exp(-p[1] * t * {factor}) - y", space)
        yield space["residual"], P2, (T, Y)


def helper(x):
    return torch.exp(-x)


@changing
def helper_replaced():
    def residual(p, t, y):
        return p[0] * helper(p[1] * t) - y

    before = helper
    yield residual, P2, (T, Y)
    globals()["helper"] = lambda x: 1 / (1 + x)
    yield residual, P2, (T, Y)
    globals()["helper"] = before
    yield residual, P2, (T, Y)


class Model:
    RATE = 1.0

    def curve(self, p, t):
        return p[0] * torch.exp(-self.RATE * p[1] * t)

    def __call__(self, p, t, y):
        return self.curve(p, t) - y


@changing
def class_attribute_and_method_replaced():
    model = Model()
    yield model, P2, (T, Y)
    Model.RATE = 2.0
    yield model, P2, (T, Y)
    model.RATE = 0.5
    yield model, P2, (T, Y)
    model.curve = types.MethodType(lambda self, p, t: p[0] / (1 + p[1] * t), model)
    yield model, P2, (T, Y)
    del model.curve
    plain, Model.curve = Model.curve, lambda self, p, t: p[0] - p[1] * t
    yield model, P2, (T, Y)
    Model.curve, Model.RATE = plain, 1.0


class Dynamic:
    def __init__(self):
        self.table = {"rate": 1.0}

    def __getattr__(self, name):
        return self.__dict__["table"][name]


@changing
def attributes_by_getattr():
    settings = Dynamic()

    def residual(p, t, y):
        return decay(p, settings.rate * t, y)

    for rate in (1.0, 3.0):
        settings.table["rate"] = rate
        yield residual, P2, (T, Y)


@changing
def environment_read():
    def residual(p, t, y):
        return decay(p, float(os.environ.get("USER_PROGRAM_RATE", "1")) * t, y)

    for rate in ("1", "2"):
        os.environ["USER_PROGRAM_RATE"] = rate
        yield residual, P2, (T, Y)
    del os.environ["USER_PROGRAM_RATE"]


@changing
def default_dtype_changed():
    def residual(p, t, y):
        return decay(p, t, y) - torch.tensor(0.1) - torch.full((20,), 0.1)

    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            yield residual, P2, (T, Y)
    finally:
        torch.set_default_dtype(before)


@changing
def numbers_among_the_arguments():
    def residual(p, t, y, power, kind, prior):
        r = decay(p, t**power, y) if kind == "exp" else p[0] - p[1] * t - y
        return r if prior is None else torch.cat([r, prior * p])

    for rest in ((1, "exp", None), (2, "exp", None), (2, "exp", 0.1), (2, "line", 0.1), (2.5, "exp", 0.3)):
        yield residual, P2, (T, Y, *rest)


@changing
def masks_and_lengths_among_the_arguments():
    def residual(p, t, y, keep):
        return decay(p, t, y)[keep] if keep.dtype == torch.bool else decay(p, t, y).index_select(0, keep)

    for keep in (T < 1, T > 1, T.sin() > 0.5, torch.arange(3, 15), torch.arange(5, 17)):
        yield residual, P2, (T, Y, keep)
    for count in (15, 18):
        yield decay, P2, (T[:count], Y[:count])


@changing
def odd_memory():
    """Strides of zero, steps, and negated and conjugated views."""
    wide = torch.stack([T, Y, T, Y], 1)
    yield decay, P2, (wide[:, 0], wide[:, 1])
    yield decay, P2, (T, torch.tensor(0.7, dtype=F64).expand(20) + 0.1 * Y)
    yield decay, torch.tensor([1.0, 9.0, 0.7], dtype=F64)[::2], (T, Y)
    negated = torch.complex(T, -Y).conj().imag
    assert negated.is_neg()
    yield decay, P2, (T, negated)
    yield decay, vector(0.9).expand(2), (T, Y)


class Measured(torch.Tensor):
    """A subclass that does nothing."""


@changing
def kinds_of_tensors():
    yield decay, P2, (T.as_subclass(Measured), Y.as_subclass(Measured))
    yield decay, P2, (nn.Parameter(T), nn.Parameter(Y))
    yield decay, nn.Parameter(P2), (T, Y)
    yield decay, P2.as_subclass(Measured), (T, Y)
    yield decay, P2.clone().requires_grad_(), (T.clone().requires_grad_(), Y)


@changing
def sparse_data():
    design = torch.stack([torch.ones(20, dtype=F64), torch.where(T > 1, T, 0)], 1)

    def residual(p, a, y):
        return a.to_dense() @ p - y

    yield residual, P2, (design.to_sparse(), Y)
    yield residual, P2, ((2 * design).to_sparse(), Y)


@changing
def nearest_neighbours():
    """Matches by argmin, as ICP has them."""
    cloud = torch.stack([T, T.sin()], 1)

    def residual(p, moving, fixed):
        moved = moving + p
        nearest = ((moved[:, None] - fixed) ** 2).sum(-1).argmin(1)
        return moved - fixed[nearest]

    yield residual, vector(0.01, 0.02), (cloud + vector(0.015, -0.02), cloud)
    yield residual, vector(0.01, 0.02), (cloud + vector(-0.02, 0.015), cloud)


@changing
def table_by_index():
    grid = torch.linspace(0, 4, 41, dtype=F64)

    def residual(p, t, y, table):
        x = (p[1] * t * 10).clamp(0, 39.99)
        low = x.detach().floor().long()
        return p[0] * torch.lerp(table[low], table[low + 1], x - low) - y

    for rate in (1.0, 0.7):
        table = torch.exp(-rate * grid)
        yield residual, vector(1.8, 1.0), (T, 2 * torch.exp(-0.93 * rate * T), table)


class Softened(torch.autograd.Function):
    """With a number, a rule for `vmap` and one for forward mode."""

    @staticmethod
    def forward(x, scale):
        return torch.sqrt(x * x + scale * scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx, towards):
        x, output = ctx.saved_tensors
        return towards * x / output, None

    @staticmethod
    def jvp(ctx, tangent, _):
        x, output = ctx.saved_tensors
        return tangent * x / output

    @staticmethod
    def vmap(info, in_dims, x, scale):
        return Softened.apply(x, scale), in_dims[0]


@changing
def function_of_autograd_with_rules():
    def made(scale):
        return lambda p, t, y: Softened.apply(p[0] * t - p[1], scale) - y

    for scale in (0.5, 0.1, 0.9):
        yield made(scale), vector(1.0, 1.2), (T, Softened.apply(0.9 * T - 1, scale))


@changing
def compiled_by_dynamo():
    for factor in (1.0, 2.0):
        model = torch.compile(lambda p, t, y, factor=factor: decay(p, factor * t, y), backend="eager")
        yield model, P2, (T, Y)


@changing
def copies_and_pickles():
    """A copy of an object does not follow the original, nor the other way round."""
    model = Model()
    yield model, P2, (T, Y)
    other = copy.deepcopy(model)
    other.RATE = 2.0
    yield other, P2, (T, Y)
    yield model, P2, (T, Y)
    third = pickle.loads(pickle.dumps(other))
    third.RATE = 0.5
    yield third, P2, (T, Y)
    yield other, P2, (T, Y)


@changing
def memory_of_helpers():
    @functools.lru_cache
    def powers(count):
        return torch.stack([T**k for k in range(count)], 1)

    settings = {"count": 2}

    def residual(p, y):
        return powers(settings["count"])[:, -2:] @ p - y

    for count in (2, 3, 4):
        settings["count"] = count
        yield residual, P2, (Y,)


def in_threads() -> str:
    """Eight threads solve what differs in a closure; each gets its own answer."""

    def made(k):
        return lambda p, t, y: decay(p, (1 + 0.2 * k) * t, y)

    def solve(k):
        return [mslsq.least_squares(made(k), P2, (T, Y)).value for _ in range(CALLS)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(solve, range(8)))
    for k, values in enumerate(found):
        expected = answer(made(k), P2, (T, Y))
        for value in values:
            if not np.allclose(value.numpy(), expected, rtol=1e-4):
                return f"thread {k}: {value.tolist()}, SciPy {expected.tolist()}"
    return ""

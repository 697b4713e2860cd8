"""Every private name of PyTorch that the library uses still does what the library expects of it.

A failure here says which name this version of PyTorch has changed; `mslsq/private` is the one folder to mend.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import mslsq
from mslsq import private
from mslsq.linear.torch_operators import Registered

aten = torch.ops.aten
CHECKS: dict[str, Callable[[], None]] = {}


def of(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """The check of these names."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return register


def inside(transform: Callable, look: Callable[[torch.Tensor], object]) -> object:
    """What `look` sees of a tensor inside a transform."""
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(look(x))
        return x.sum()

    transform(function)
    return seen[0]


def under_vmap(look: Callable[[torch.Tensor], object]) -> object:
    return inside(lambda f: vmap(f, in_dims=1)(torch.ones(2, 3)), look)


def under_grad(look: Callable[[torch.Tensor], object]) -> object:
    return inside(lambda f: grad(f)(torch.ones(3)), look)


@of("empty_maker")
def check_empty_maker() -> None:
    made = private.empty_maker((2, 3), (1, 2), torch.float32)()
    assert type(made) is torch.Tensor and made.dtype == torch.float32 and made.is_cpu
    assert made.shape == (2, 3) and made.stride() == (1, 2) and not made.requires_grad
    with mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cpu", None):
        assert private.empty_maker((2, 3), (1, 2), torch.int64)().stride() == (1, 2)


@of("MODULE_TABLES")
def module_tables() -> None:
    module = nn.BatchNorm1d(2)
    module.add_module("inner", nn.Linear(1, 1))
    tables = [vars(module)[name] for name in private.MODULE_TABLES]
    assert [next(iter(table)) for table in tables] == ["weight", "running_mean", "inner"]


@of("HOOKS", "hooks_of_all_modules")
def hooks() -> None:
    module = nn.Linear(1, 1)
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        getattr(module, f"register_{register}")(lambda *given: None)
    assert all(getattr(module, name) for name in private.HOOKS)
    assert not private.hooks_of_all_modules()
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *given: None)
    assert private.hooks_of_all_modules()
    handle.remove()
    assert not private.hooks_of_all_modules()


@of("MODULE_INTERNALS")
def module_internals() -> None:
    """Beside these, and tables that are empty, there are the user's attributes alone."""
    module = nn.Module()
    module.own = 3
    kept = {name for name, entry in vars(module).items() if not (isinstance(entry, dict) and not entry)}
    assert kept - set(private.MODULE_INTERNALS) == {"own"}


@of("derived_attributes")
def attributes_of_recurrent_networks() -> None:
    """They refer to the parameters, and are made again in the call after one was replaced."""
    net = nn.LSTM(1, 2)
    (name,) = private.derived_attributes(net)
    assert not private.derived_attributes(nn.Linear(1, 1))
    net._parameters["bias_hh_l0"] = torch.zeros(8)
    net(torch.zeros(1, 1))
    assert {id(reference()) for reference in vars(net)[name]} == {id(p) for p in net._parameters.values()}


@of("below_autograd", "with_autograd")
def autograd_inside_of_operators() -> None:
    """PyTorch calls an operator with its autograd switched off; `with_autograd` switches it on there."""
    x = torch.tensor(3.0, requires_grad=True)
    with private.below_autograd():
        assert not (x * x).requires_grad
        with private.with_autograd():
            leaf = torch.tensor(3.0, requires_grad=True)
            assert float(torch.autograd.grad(leaf * leaf, leaf)[0]) == 6
    with torch.inference_mode(), private.with_autograd():
        leaf = torch.tensor(3.0, requires_grad=True)
        assert float(torch.autograd.grad(leaf * leaf, leaf)[0]) == 6


@of("is_inside_of_ddp")
def inside_of_ddp() -> None:
    """`tests/distributed` has the inside."""
    if torch.distributed.is_available():
        assert not private.is_inside_of_ddp()


@of("is_functionalizing")
def functionalizing() -> None:
    def look(x: torch.Tensor) -> bool:
        return private.is_functionalizing()

    assert inside(lambda f: torch.func.functionalize(f)(torch.ones(3)), look) is True
    assert under_vmap(look) is False
    assert not private.is_functionalizing()


@of("script_constants")
def scripts() -> None:
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = 3.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * x

    assert "factor" in private.script_constants(torch.jit.script(Scaled()))
    assert private.script_constants(Scaled()) == ()


@of("DISPATCHING_FILES")
def dispatching() -> None:
    """The first frame beyond these is the one that calls the operation."""
    seen = []

    class Mode(private.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            frame = sys._getframe(1)
            while frame.f_code.co_filename.endswith(private.DISPATCHING_FILES):
                frame = frame.f_back
            seen.append(frame.f_code.co_name)
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2).add_(1)
    assert set(seen) == {"dispatching"}


@of("SAMPLER_HAS_DERIVATIVES")
def sampler() -> None:
    image, grid = torch.rand(1, 1, 4, 4), torch.zeros(1, 1, 2, 2)
    _, pull = private.vjp(lambda grid: aten.grid_sampler_2d.default(image, grid, 0, 0, True).sum(), grid)
    if private.SAMPLER_HAS_DERIVATIVES:
        assert vmap(lambda u: pull(u, create_graph=True)[0])(torch.ones(2)).isfinite().all()


@of("OPERATORS_IN_C")
def modules_of_operators() -> None:
    functions = torch.linalg.cholesky, nn.functional.softplus, torch.special.erf, torch.fft.fft
    assert {function.__module__ for function in functions} == private.OPERATORS_IN_C


@of("has_parts")
def check_operators_made_of_others():
    x = torch.ones(2, 3)
    assert private.has_parts(aten.linear.default) and not private.has_parts(aten.add.Tensor)
    assert aten.add.Tensor.decompose(x, x) is NotImplemented
    assert torch.equal(aten.linear.default.decompose(x, x), x @ x.T)


@of("is_operator", "operator_name", "overload_name")
def operators() -> None:
    assert private.is_operator(aten.add.Tensor)
    assert not private.is_operator(torch.add)
    assert not private.is_operator(aten.add)
    assert (private.operator_name(aten.add.Tensor), private.overload_name(aten.add.Tensor)) == ("add", "Tensor")


@of("tensors_of_operator")
def tensors_of_operators() -> None:
    for operator in (aten.dot, aten.dot.default):
        assert private.tensors_of_operator(operator) == ("aten::dot", ("self", "tensor"))

    @torch.library.custom_op("mslsq_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor, times: float = 2.0) -> torch.Tensor:
        return times * x

    assert private.tensors_of_operator(doubled) == ("mslsq_tests::doubled", ("x",))
    assert private.tensors_of_operator(torch.dot) is private.tensors_of_operator(abs) is None


@of("arguments_of")
def arguments() -> None:
    found = private.arguments_of(aten.sum.dim_IntList)
    assert [argument.name for argument in found][:3] == ["self", "dim", "keepdim"]
    assert str(found[0].type) == "Tensor"


@of("returns_a_view", "writes", "written_arguments")
def aliases() -> None:
    assert private.returns_a_view(aten.transpose.int)
    assert not private.returns_a_view(aten.add.Tensor)
    assert private.writes(aten.add_.Tensor)
    assert not private.writes(aten.add.Tensor)
    assert not private.writes(torch.add)
    assert private.written_arguments(aten.add_.Tensor, ("self", "other")) == ["self"]
    with_statistics = ("input", "weight", "bias", "mean", "variance", True, 0.1, 1e-5)
    assert private.written_arguments(aten._native_batch_norm_legit.default, with_statistics) == ["mean", "variance"]


@of("enter_directly")
def an_operator_runs_the_function_that_it_was_made_of():
    called = []
    twice = Registered("twice_for_a_test", _twice(called))
    x = torch.ones(2)
    assert private.fast_entry(twice._overload)(x, [x]).tolist() == [2, 2] and called == [True]
    graph = make_fx(lambda x: private.fast_entry(twice._overload)(x, [x]))(x)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [twice._overload]


def _twice(called):
    def twice(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
        called.append(True)
        return x + others[0]

    return twice


@of("gradients")
def the_engine_gives_the_gradients_of_autograd():
    x, unused = torch.tensor([1.0, 2.0], requires_grad=True), torch.ones(1, requires_grad=True)
    u = torch.tensor([1.0, 3.0])
    found = private.gradients([x.square()], [x, unused], [u])
    assert found[0] is not None and found[0].tolist() == [2, 12]
    assert found[1] is None and x.grad is None


@of("fast_entry")
def entries() -> None:
    assert private.fast_entry(aten.add.Tensor)(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    assert private.fast_entry(torch.add) is torch.add


@of("version_of")
def versions() -> None:
    x = torch.zeros(2)
    before = private.version_of(x)
    x.add_(1)
    assert private.version_of(x) == before + 1
    with torch.inference_mode():
        assert private.version_of(torch.zeros(2)) == 0


@of("is_lazy_zero")
def lazy_zeros() -> None:
    assert private.is_lazy_zero(torch._efficientzerotensor(2))
    assert not private.is_lazy_zero(torch.zeros(2))


class Counting(private.DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(private.operator_name(func))
        return func(*args, **(kwargs or {}))


@of("DispatchMode", "without_dispatch_modes", "without_modes", "is_tracing_or_dispatching")
def modes() -> None:
    x = torch.ones(2)
    assert not private.is_tracing_or_dispatching()
    with Counting() as mode:
        _ = x + x
        assert private.is_tracing_or_dispatching()
        for without in (private.without_dispatch_modes, private.without_modes):
            with without():
                _ = x * x
                assert not private.is_tracing_or_dispatching()
    assert mode.seen == ["add"]
    with torch.device("meta"), private.without_modes():
        assert torch.zeros(1).device.type == "cpu"
    seen = []
    torch.jit.trace(lambda y: seen.append(private.is_tracing_or_dispatching()) or y * 2, x, check_trace=False)
    assert seen[0]


@of("function_modes_are_active")
def function_modes() -> None:
    assert not private.function_modes_are_active()
    with torch.device("meta"):
        assert private.function_modes_are_active()


@of("WeakTensorKeyDictionary")
def weak_keys() -> None:
    x = torch.ones(2)
    table = private.WeakTensorKeyDictionary()
    table[x] = True
    assert x in table
    assert torch.ones(2) not in table
    del x
    assert not len(table)


@of("FakeTensor")
def fake_tensors() -> None:
    seen = []
    make_fx(lambda x: seen.append(x) or x * 2, tracing_mode="fake")(torch.ones(2))
    assert isinstance(seen[0], private.FakeTensor)


@of("dispatch_modes")
def innermost_last() -> None:
    class Quiet(private.DispatchMode): ...

    with Quiet() as outer, Quiet() as inner:
        assert private.dispatch_modes()[-2:] == [outer, inner]


@of("get_proxy_mode", "disable_proxy_modes_tracing")
def recording() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(private.get_proxy_mode())
        with private.disable_proxy_modes_tracing():
            seen.append(private.get_proxy_mode())
        return vmap(grad(torch.sin))(x)

    graph = make_fx(function, decomposition_table={})(torch.ones(3))
    assert seen[0] is not None
    assert seen[1] is None
    assert private.get_proxy_mode() is None
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert aten.cos.default in targets
    assert all(private.is_operator(target) for target in targets)
    assert graph(torch.zeros(3)).tolist() == [1, 1, 1]


@of("transforms_are_active", "outside_of_transforms")
def transforms() -> None:
    def look(x: torch.Tensor) -> tuple[bool, bool]:
        with private.outside_of_transforms():
            outside = private.transforms_are_active()
        return private.transforms_are_active(), outside

    assert not private.transforms_are_active()
    assert under_vmap(look) == under_grad(look) == (True, False)


@of("has_escaped")
def wrappers_of_transforms_that_have_ended_are_told():
    kept = []

    def noted(x):
        kept.append(2 * x)
        assert not private.has_escaped(kept[-1])
        return kept[-1].sum()

    at = torch.ones(3, 2)
    for transformed in (vmap(grad(noted)), grad(noted), torch.func.functionalize(noted), vmap(noted)):
        transformed(at)
    torch.func.jvp(noted, (at,), (at,))
    assert len(kept) == 5 and all(map(private.has_escaped, kept)) and not private.has_escaped(at)
    seen = []
    vmap(lambda x: seen.append(private.has_escaped(kept[2])) or x)(at)  # of another kind at the same level
    assert seen == [True]


@of("is_wrapped", "is_batched", "is_differentiated", "unwrapped", "level_of", "batch_dimension", "rebatched")
def wrappers() -> None:
    def look(x: torch.Tensor) -> tuple:
        kinds = private.is_wrapped(x), private.is_batched(x), private.is_differentiated(x)
        return *kinds, tuple(private.unwrapped(x).shape), private.level_of(x)

    assert not private.is_wrapped(torch.ones(2))
    assert under_vmap(look) == (True, True, False, (2, 3), 1)
    assert under_grad(look) == (True, False, True, (3,), 1)
    assert under_vmap(private.batch_dimension) == 1
    again = under_vmap(lambda x: tuple(private.rebatched(private.unwrapped(x), like=x).shape))
    assert again == (2,)


@of("is_batched_by_autograd")
def legacy_wrappers() -> None:
    seen = []

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append(private.is_batched_by_autograd(g))
            return g

    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(Identity.apply(x), x, torch.eye(2), is_grads_batched=True)
    assert seen and all(seen)
    assert not private.is_batched_by_autograd(torch.ones(2))


@of("forward_level_is_open")
def forward_levels() -> None:
    assert not private.forward_level_is_open()
    with torch.autograd.forward_ad.dual_level():
        assert private.forward_level_is_open()


@of("forward_modes_are_nested")
def nested_forward_modes() -> None:
    seen = []

    def f(x):
        seen.append(private.forward_modes_are_nested())
        return x * x

    one = torch.ones((), dtype=torch.float64)
    torch.func.jacfwd(f)(one)
    torch.func.jacfwd(torch.func.grad(f))(one)
    torch.func.jacfwd(torch.func.jacfwd(f))(one)
    assert not private.forward_modes_are_nested() and seen == [False, False, True]


@of("forward_mode_again")
def forward_mode() -> None:
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            with private.forward_mode_again():
                seen.append(torch._C._is_fwd_grad_enabled())
                return 2 * torch.autograd.forward_ad.unpack_dual(x).primal * tangent

    def derivative(x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(Square.apply, (x,), (torch.ones(()),))[1]

    assert torch.func.jvp(derivative, (torch.tensor(3.0),), (torch.ones(()),))[1] == 2  # 0 without it
    assert seen and all(seen)


@of("without_saved_tensor_hooks")
def saved_tensor_hooks() -> None:
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        x = torch.ones(2, requires_grad=True)
        with private.without_saved_tensor_hooks():
            (x * x).sum()
            torch.func.vjp(torch.sin, torch.ones(2))
        assert not packed
        (x * x).sum()
        assert packed
    with private.without_saved_tensor_hooks():  # inside a transform, where hooks are disabled
        grad(lambda y: (y * y).sum())(torch.ones(2))


@of("vjp")
def reverse() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * y).sin(), x.exp().sum()

    x, y = torch.tensor([0.3, 0.4]), torch.tensor([[1.1, -2.0], [0.2, 3.0]])
    seeds = torch.tensor([[0.5, 2.0], [1.5, 3.0]]), torch.tensor(0.7)

    def all_of(vjp: Callable) -> list[torch.Tensor]:
        value, pull = vjp(function, x, y)
        (unused,) = vjp(lambda z: torch.ones(2), x)[1](x)

        def gradient(z: torch.Tensor) -> torch.Tensor:
            return vjp(torch.prod, z)[1](torch.tensor(1.0), create_graph=True)[0]

        second = vmap(lambda z: vjp(gradient, z)[1](z)[0])(y)
        forward = torch.func.jvp(gradient, (x,), (x,))[1]
        batched = vmap(lambda row: vjp(lambda z: z * x, x)[1](row)[0])(y)
        return [*value, *pull(seeds), unused, second, forward, batched]

    for found, expected in zip(all_of(private.vjp), all_of(torch.func.vjp), strict=True):
        assert torch.equal(found, expected)
    outer = x.clone().requires_grad_()
    (pulled,) = private.vjp(torch.sin, outer)[1](torch.ones(2))
    assert torch.allclose(torch.autograd.grad(pulled.sum(), outer)[0], -x.sin())
    with pytest.raises(TypeError, match="structure"):
        private.vjp(function, x, y)[1](seeds[0])
    with torch.inference_mode():
        assert torch.equal(private.vjp(torch.sin, torch.ones(2))[1](torch.ones(2))[0], torch.ones(2).cos())


@of("derivatives_in_inference_mode", "torch_func_leaves_inference_mode")
def inference_mode() -> None:
    x = torch.ones(2)
    with torch.inference_mode():
        as_it_is = torch.func.jvp(torch.sin, (x,), (x,))[1]
        with private.derivatives_in_inference_mode():
            assert not torch.is_grad_enabled()
            assert torch.equal(torch.func.jvp(torch.sin, (x,), (x,))[1], x.cos())
        assert torch.is_inference_mode_enabled()
    assert torch.equal(as_it_is, x.cos()) == private.torch_func_leaves_inference_mode()
    with private.derivatives_in_inference_mode():
        assert torch.is_grad_enabled()


@of("dynamo_is_imported")
def dynamo() -> None:
    program = "from mslsq.private import dynamo_is_imported as is_there; print(is_there()); "
    program += "import torch._dynamo; print(is_there())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "True"]


@of("dynamo_may_look")
def looking() -> None:
    """Before it is imported, then outside and inside of what is compiled, and where that is disabled."""
    program = "import torch; from mslsq.private import dynamo_may_look as may; print(may()); import torch._dynamo; "
    program += "print(may()); said = torch.compiler.disable(lambda: print(may())); said(); "
    program += "f = lambda x: (torch._dynamo.graph_break(), hidden(x))[1]\n"
    program += "def hidden(x):\n    print(may())\n    return x\n"
    program += "hidden._torchdynamo_disable = True\n"
    program += "torch.compile(f, backend='eager')(torch.ones(2)); print(may())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False", "False", "True", "False"]


@of("hidden_from_dynamo")
def hidden() -> None:
    def function() -> None: ...

    private.hidden_from_dynamo(function, "a reason")
    disabled = torch.compiler.disable(lambda: None, reason="a reason")
    marks = {name for name in vars(disabled) if name in vars(function)}
    assert {name: getattr(function, name) for name in marks} == {name: getattr(disabled, name) for name in marks}
    assert len(marks) == 2


@of("load_forward_mode")
def loaded() -> None:
    code = """
import sys, warnings
warnings.simplefilter("error")
from mslsq.private import forward_mode
assert forward_mode._OF_FORWARD_MODE not in sys.modules
forward_mode.load_forward_mode()
assert forward_mode._OF_FORWARD_MODE in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@of("jvp", "jacfwd", "value_and_jacfwd")
def forward_derivatives() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    value, tangent = private.jvp(lambda x: x**3, (x,), (torch.ones_like(x),))
    assert (value.tolist(), tangent.tolist()) == ([1, 8], [3, 12])
    value, jacobian = private.value_and_jacfwd(lambda x: x**3, x)
    assert (value.tolist(), jacobian.tolist()) == ([1, 8], [[3, 0], [0, 12]])
    bends = torch.func.jacfwd(private.jacfwd(lambda x: x**3))(x)  # levels within levels
    assert bends.tolist() == [[[6, 0], [0, 0]], [[0, 0], [0, 12]]]
    assert torch.equal(private.jacfwd(private.jacfwd(lambda x: x**3))(x), bends)


@of("vmapped")
def mapping() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    both = private.vmapped(lambda x, y: (x.sum(), x * y), (x, torch.tensor([1.0, 2.0])), (-1, None))
    assert (both[0].tolist(), both[1].tolist()) == ([3, 5, 7], [[0, 6], [1, 8], [2, 10]])
    nested = private.vmapped(lambda x: private.vmapped(torch.sin, (x,), (0,)), (x,), (0,))
    assert torch.equal(nested, x.sin())
    with pytest.raises(RuntimeError, match="randomness"):
        private.vmapped(lambda x: x + torch.randn(()), (x,), (0,))


@of("is_differentiated_once_at_most")
def first_derivatives() -> None:
    seen = []

    def looking(x: torch.Tensor) -> torch.Tensor:
        seen.append(private.is_differentiated_once_at_most())
        return x.sum() ** 2

    x = torch.ones(2)
    with torch.no_grad():
        torch.func.vmap(torch.func.grad(looking))(x[None])
        torch.func.jacrev(torch.func.grad(looking))(x)
    torch.func.grad(looking)(x)
    assert seen == [True, False, False]


@of("LazyGraphModule")
def graphs_written_when_called() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.sin, (graph.placeholder("x"),)))
    module = private.LazyGraphModule(torch.nn.Module(), graph)
    assert "_code" not in vars(module)
    assert torch.equal(module(torch.ones(2)), torch.ones(2).sin())
    graph.find_nodes(op="call_function", target=torch.sin)[0].target = torch.cos
    module.recompile()
    assert torch.equal(module.forward(torch.ones(2)), torch.ones(2).cos())


@of("spare_dynamo")
def spared() -> None:
    @torch._disable_dynamo
    def function(x: int) -> int:
        return x + 1

    marked = inspect.getclosurevars(function).nonlocals["fn"]
    private.spare_dynamo(function)
    substitute = getattr(marked, "__dynamo_disable")
    with mock.patch.dict(sys.modules, {"torch._dynamo": None}):  # cannot be imported
        assert function(1) == 2
    assert getattr(marked, "__dynamo_disable") is substitute
    importlib.import_module("torch._dynamo")
    assert function(1) == 2
    assert getattr(marked, "__dynamo_disable") is not substitute
    private.spare_dynamo(lambda: None)  # not marked: left alone
    private.spare_dynamo(None)


@of("compiled_by_inductor")
def inductor() -> None:
    graph = make_fx(lambda x: (torch.sin(x) + 1,))(torch.ones(8))
    found = private.compiled_by_inductor(graph, [torch.ones(8)])(torch.zeros(8))
    assert found[0].tolist() == [1.0] * 8


@of("children_of")
def children_of_structures() -> None:
    structure = private.pytree.tree_flatten([1, (2, 3)])[1]
    leaf, pair = private.children_of(structure)
    assert (leaf.type, pair.type, len(private.children_of(pair)), private.children_of(leaf)) == (None, tuple, 2, [])


@of("pytree")
def pytrees() -> None:
    tree = {"b": 1, "a": (mslsq.SO2.identity(dtype=torch.float64), 2)}
    leaves, structure = private.pytree.tree_flatten(tree)
    assert [leaf for leaf in leaves if isinstance(leaf, int)] == [1, 2]
    again = private.pytree.tree_unflatten(leaves, structure)
    assert isinstance(again["a"][0], mslsq.SO2)
    assert private.pytree._broadcast_to_and_flatten({"b": 0, "a": None}, structure) == [0, None, None]
    path = private.pytree.tree_flatten_with_path({"a": [3]})[0][0][0]
    assert private.pytree.keystr(path) == "['a'][0]"


SLOW = {
    "compiled_by_inductor",
    "dynamo_is_imported",
    "dynamo_may_look",
    "hidden_from_dynamo",
    "spare_dynamo",
}  # they import Dynamo and Inductor


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in private.__all__]
)
def test_it_still_does_what_is_expected_of_it(name):
    try:
        CHECKS[name]()
    except Exception as error:
        raise AssertionError(f"torch {torch.__version__} has changed what mslsq.private.{name} stands for") from error


def test_it_works_in_another_thread():
    failures: list[BaseException] = []

    def work() -> None:
        try:
            wrappers()
            transforms()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


# Names of PyTorch that are private, wherever they stand: in a chain that begins with `torch`, or at the end of another.
OF_OBJECTS = ("_schema", "_op", "_overloadname", "_version", "_is_zerotensor", "_torchdynamo_disable")
PRIVATE_MODULES = ("torch.fx.experimental", "torch.utils.weak")
IN_STRINGS = re.compile(
    r"_(parameters|buffers|modules|dynamo|concrete_type|is_full_backward_hook|non_persistent.*)|torch\._.*"
)


def chain(node: ast.expr) -> str:
    """`torch.utils._pytree` from the tree of that expression; "" where it does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = chain(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    """Operators of ATen are the words that recorded graphs are written in, also those with an underscore."""
    parts = name.split(".")
    if parts[0] != "torch" or parts[:3] == ["torch", "ops", "aten"]:
        return False
    underscored = any(part[0] == "_" and not part.startswith("__") for part in parts)
    return underscored or name.startswith(PRIVATE_MODULES)


def private_names(source: str) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [chain(node)] if node.attr not in OF_OBJECTS else [f"torch.{node.attr}"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_STRINGS.fullmatch(node.value):
            names = [f"torch.{node.value}"]
        else:
            continue
        found += [(node.lineno, name) for name in names if is_private(name)]
    return found


def test_no_other_folder_uses_a_private_name():
    root = Path(mslsq.__file__).parent
    found = {
        str(path.relative_to(root)): names
        for path in sorted(root.rglob("*.py"))
        if path.parent != root / "private" and (names := private_names(path.read_text()))
    }
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "from torch.autograd.forward_ad import _set_fwd_grad_enabled",
        "from torch._C import anything",
        "import torch.fx.experimental.proxy_tensor",
        "torch._C._functorch.maybe_get_level(x)",
        "tensor._version",
        "getattr(module, '_concrete_type')",
        "'torch._dynamo' in sys.modules",
    ],
)
def test_a_private_name_would_be_found(line):
    assert private_names(line)


def test_the_operators_of_aten_that_the_library_names_are_there():
    for path in sorted(Path(mslsq.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = chain(node).removeprefix("torch.ops.") if isinstance(node, ast.Attribute) else ""
            if re.fullmatch(r"aten\._\w+\.\w+", name):
                _, operator, overload = name.split(".")
                assert hasattr(getattr(aten, operator), overload), f"{path.name}: {name}"

"""What closed code was seen to read is told to be the same by identity, and every way of changing it is noticed."""

import functools
import gc
import types
import weakref

import pytest
import torch
from torch import nn

from mslsq.tracing.reading.inputs import collect, collect_module
from mslsq.tracing.reading.noted import Noted

F64 = torch.float64


def written(text, **entries):
    """`residual`, and what else the text defines, in a module of a user's."""
    module = types.ModuleType("tests_of_noted")
    vars(module).update(torch=torch, nn=nn, functools=functools, **entries)
    exec(text, vars(module))
    return module


def of_function(module):
    return module.residual, Noted.of(collect(module.residual), looks_at_objects=True)


def a_global():
    module = written("def residual(p): return GAIN * p", GAIN=2.0)
    return (*of_function(module), lambda: setattr(module, "GAIN", 4.0))


def a_global_of_the_same_value():
    """Identity is all that is looked at: the walk has the last word."""
    module = written("def residual(p): return GAIN * p", GAIN=float("2.5"))
    return (*of_function(module), lambda: setattr(module, "GAIN", float("2.5")))


def a_builtin_shadowed():
    module = written("def residual(p): return abs(p)")
    return (*of_function(module), lambda: setattr(module, "abs", lambda p: 2 * p))


def a_helper_rebound():
    module = written("def helper(p): return 2 * p\ndef residual(p): return helper(p)")
    return (*of_function(module), lambda: setattr(module, "helper", lambda p: 4 * p))


def the_code_of_a_helper():
    module = written("def helper(p): return 2 * p\ndef residual(p): return helper(p)")
    other = written("def helper(p): return 4 * p").helper
    return (*of_function(module), lambda: setattr(module.helper, "__code__", other.__code__))


def the_defaults_of_a_helper():
    module = written("def helper(p, gain=2.0): return gain * p\ndef residual(p): return helper(p)")
    return (*of_function(module), lambda: setattr(module.helper, "__defaults__", (4.0,)))


def the_default_of_a_word():
    module = written("def residual(p, gain=2.0): return gain * p")
    return (*of_function(module), lambda: setattr(module.residual, "__kwdefaults__", {"gain": 4.0}))


def an_attribute_of_a_function():
    module = written("def helper(p): return p\ndef residual(p): return helper(p)")
    return (*of_function(module), lambda: setattr(module.helper, "gain", 4.0))


def a_cell():
    module = written("def make(gain):\n    def residual(p): return gain * p\n    return residual\nresidual = make(2.0)")
    return (*of_function(module), lambda: setattr(module.residual.__closure__[0], "cell_contents", 4.0))


def an_emptied_cell():
    module = written("def make(gain):\n    def residual(p): return gain * p\n    return residual\nresidual = make(2.0)")
    return (*of_function(module), lambda: delattr(module.residual.__closure__[0], "cell_contents"))


def a_tensor_in_a_cell():
    text = "def make(gain):\n    def residual(p): return gain * p\n    return residual\nresidual = make(GAIN)"
    module = written(text, GAIN=torch.ones(2))
    return (
        *of_function(module),
        lambda: setattr(module.residual.__closure__[0], "cell_contents", torch.ones(2)),
    )


def another_function_of_the_same_code():
    text = "def make(gain):\n    def residual(p): return gain * p\n    return residual\nresidual = make(2.0)"
    module = written(text)
    root, noted = of_function(module)
    root = [root]
    return root, noted, lambda: root.__setitem__(0, module.make(2.0))


CLOSURES = """
def made(gain, base=1.0):
    def inner(p): return gain * p
    def residual(p): return inner(p) + base
    return residual
residual = made(GAIN)
"""


def a_cell_of_a_function_in_the_closure():
    module = written(CLOSURES, GAIN=2.0)
    inner = module.residual.__closure__[1].cell_contents
    return (*of_function(module), lambda: setattr(inner.__closure__[0], "cell_contents", 4.0))


def a_function_in_the_closure():
    module = written(CLOSURES, GAIN=2.0)
    cell = module.residual.__closure__[1]
    return (*of_function(module), lambda: setattr(cell, "cell_contents", lambda p: 4 * p))


def a_function_in_the_closure_that_is_none_any_more():
    module = written(CLOSURES, GAIN=2.0)
    cell = module.residual.__closure__[1]
    return (*of_function(module), lambda: setattr(cell, "cell_contents", 4.0))


def the_code_of_a_function_in_the_closure():
    module = written(CLOSURES, GAIN=2.0)
    inner = module.residual.__closure__[1].cell_contents
    other = written("def made(gain):\n    def inner(p): return 2 * gain * p\n    return inner\ninner = made(2.0)").inner
    return (*of_function(module), lambda: setattr(inner, "__code__", other.__code__))


def a_global_of_a_function_in_the_closure():
    module = written(CLOSURES.replace("gain * p", "gain * p * MORE"), GAIN=2.0, MORE=1.0)
    return (*of_function(module), lambda: setattr(module, "MORE", 4.0))


def the_defaults_of_the_function_itself():
    module = written("def residual(p, gain=2.0): return gain * p")
    return (*of_function(module), lambda: setattr(module.residual, "__defaults__", (4.0,)))


def fewer_defaults():
    module = written("def residual(p, gain=2.0): return gain * p")
    return (*of_function(module), lambda: setattr(module.residual, "__defaults__", None))


def an_attribute_of_the_function_itself():
    module = written("def residual(p): return p")
    return (*of_function(module), lambda: setattr(module.residual, "gain", 4.0))


def other_globals():
    module = written("def residual(p): return GAIN * p", GAIN=2.0)
    root, noted = of_function(module)
    root = [root]
    other = types.FunctionType(root[0].__code__, {**vars(module), "GAIN": 4.0})
    return root, noted, lambda: root.__setitem__(0, other)


def a_tensor_that_is_none_now():
    """What is told by a weak reference that is dead is not None."""
    text = "def make(gain):\n    def residual(p): return p if gain is None else gain * p\n    return residual\n"
    module = written(text + "residual = make(torch.ones(2))")
    return (*of_function(module), lambda: setattr(module.residual.__closure__[0], "cell_contents", None))


MODULE = """
class Own(nn.Module):
    gain = 2.0
    def scaled(self, p): return self.gain * p
    @property
    def twice(self): return 2
    def residual(self, p): return self.scaled(p) * self.twice
"""


def of_module(module):
    own = module.Own()
    return own, Noted.of(collect_module(own), looks_at_objects=False)


def a_method():
    module = written(MODULE)
    return (*of_module(module), lambda: setattr(module.Own, "scaled", lambda self, p: 4 * p))


def a_method_that_an_inherited_one_hides():
    module = written(MODULE + "class Own(Own):\n    def other(self): return 1\n")
    return (*of_module(module), lambda: setattr(module.Own, "scaled", lambda self, p: 4 * p))


def an_attribute_of_a_class():
    module = written(MODULE)
    return (*of_module(module), lambda: setattr(module.Own, "gain", 4.0))


def a_property():
    module = written(MODULE)
    return (*of_module(module), lambda: setattr(module.Own, "twice", 3))


def the_code_of_a_method():
    module = written(MODULE)
    other = written("def scaled(self, p): return 4 * p").scaled
    return (*of_module(module), lambda: setattr(module.Own.scaled, "__code__", other.__code__))


def the_bases_of_a_class():
    module = written(
        "class Base(nn.Module):\n    def scaled(self, p): return 2 * p\n" + MODULE.replace("nn.Module", "Base")
    )
    other = type("Other", (nn.Module,), {"__module__": "tests_of_noted", "scaled": lambda self, p: 4 * p})
    return (*of_module(module), lambda: setattr(module.Own, "__bases__", (other,)))


def the_class_of_an_object():
    module = written(MODULE)
    own, noted = of_module(module)
    return own, noted, lambda: setattr(own, "__class__", type("Sub", (module.Own,), {}))


def a_global_of_a_method():
    module = written(MODULE.replace("self.gain", "GAIN"), GAIN=2.0)
    return (*of_module(module), lambda: setattr(module, "GAIN", 4.0))


WAYS = [
    *(a_global, a_global_of_the_same_value, a_builtin_shadowed, a_helper_rebound, the_code_of_a_helper),
    *(the_defaults_of_a_helper, the_default_of_a_word, an_attribute_of_a_function, a_cell, an_emptied_cell),
    *(a_tensor_in_a_cell, another_function_of_the_same_code, a_method, a_method_that_an_inherited_one_hides),
    *(an_attribute_of_a_class, a_property, the_code_of_a_method, the_bases_of_a_class, the_class_of_an_object),
    *(a_global_of_a_method, a_cell_of_a_function_in_the_closure, a_function_in_the_closure),
    *(a_function_in_the_closure_that_is_none_any_more, the_code_of_a_function_in_the_closure),
    *(a_global_of_a_function_in_the_closure, the_defaults_of_the_function_itself, fewer_defaults),
    *(an_attribute_of_the_function_itself, other_globals, a_tensor_that_is_none_now),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_change_is_noticed(way):
    root, noted, change = way()
    assert noted is not None
    now = lambda: root[0] if isinstance(root, list) else root  # noqa: E731
    assert noted.holds(now()) and noted.holds(now())
    change()
    assert not noted.holds(now())


@pytest.mark.parametrize(
    "text",
    [
        "GAINS = [2.0]\ndef residual(p): return GAINS[0] * p",
        "GAINS = {'a': 2.0}\ndef residual(p): return GAINS['a'] * p",
        "GAIN = torch.ones(2)\ndef residual(p): return GAIN * p",
        "class Settings: gain = 2.0\nSETTINGS = Settings()\ndef residual(p): return SETTINGS.gain * p",
        "def make(gains):\n    def residual(p): return gains[0] * p\n    return residual\nresidual = make([2.0])",
        "def residual(p, gains=[2.0]): return gains[0] * p",
        "def residual(p, *, gain=2.0): return gain * p",
        "def helper(p): return p\nhelper.gain = 2.0\ndef residual(p): return helper(p) * helper.gain",
        "import os\ndef residual(p): return p * float(os.environ.get('GAIN', 1))",
        "def residual(p):\n    import math\n    return p * math.pi",
        "def residual(p): return p * globals()['GAIN']",
        "helper = functools.partial(torch.mul, 2.0)\ndef residual(p): return helper(p)",
    ],
)
def test_what_counts_by_its_content_is_left_to_the_walk(text):
    assert of_function(written(text))[1] is None


def test_a_function_that_is_written_again_and_holds_the_same_reads_the_same():
    module = written(CLOSURES, GAIN=2.0)
    root, noted = of_function(module)
    other = module.made(module.GAIN)
    assert other is not root and noted.holds(root) and noted.holds(other)
    assert not noted.holds(module.made(float("4.0")))
    assert not noted.holds(module.made(module.GAIN, 2.0))
    del root, module.residual
    gc.collect()
    assert noted.holds(other)


def test_a_function_that_holds_no_function_is_another_one():
    """The library's own residual around a model: one code, and models of every kind."""

    def around(model):
        return lambda x: model(x)

    def holding(k):
        return lambda x: k() * x

    noted = Noted.of(collect(around(holding(lambda: 2.0))), looks_at_objects=True)
    assert noted is not None and noted.holds(around(holding(lambda: 2.0))) is False  # of other code
    for other in (plain, torch.nn.Identity(), functools.partial(plain), lambda x: 2.0 * x):
        assert not noted.holds(around(other))


def plain(x):
    return x


def test_an_object_without_weak_references_is_left_to_the_walk():
    class Called:
        __slots__ = ("k",)

        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return self.k * x

    assert Noted.of(collect(Called(2.0)), looks_at_objects=True) is None


def test_a_function_that_calls_itself_is_left_to_the_walk():
    text = "def make():\n    def residual(p): return residual(p - 1) if p.ndim > 9 else p\n    return residual\n"
    assert of_function(written(text + "residual = make()"))[1] is None


def test_nothing_of_a_closure_is_kept_alive():
    text = "def make(gain):\n    def residual(p): return gain * p\n    return residual\nresidual = make(GAIN)"
    module = written(text, GAIN=torch.ones(2))
    root, noted = of_function(module)
    alive = [weakref.ref(root), weakref.ref(module.GAIN)]
    del root, module.residual, module.GAIN
    gc.collect()
    assert [x() for x in alive] == [None, None]
    assert not noted.holds(lambda p: p) and noted.tensors[0]() is None


def test_a_dead_reference_is_nothing_that_stands_there():
    from mslsq.tracing.reading.unchanged import are_same

    held = torch.ones(2)
    then = [weakref.ref(held), 1]
    assert are_same([held, 1], then)
    del held
    gc.collect()
    assert not are_same([None, 1], then)


def test_a_walk_leaves_nothing_to_the_garbage_collector():
    held = torch.ones(2)
    alive = weakref.ref(held)

    def residual(p):
        return held * p

    gc.disable()
    try:
        collected = collect(residual)
        assert list(collected.tensors)
        del collected, residual, held
        assert alive() is None
    finally:
        gc.enable()

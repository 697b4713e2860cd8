"""What a residual reads is part of its key by value, wherever Python keeps it, and what it does not read is not."""

import array
import collections
import contextvars
import dataclasses
import enum
import functools
import logging
import operator
import os
import sys
import types
import typing
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from mslsq.tracing.reading import reachable
from mslsq.tracing.reading.changes import named
from mslsq.tracing.reading.inputs import collect

KINDS = []


def kind(make):
    """`make()` returns (a residual of x, a function that sets what it reads)."""
    KINDS.append(make)
    return make


@dataclasses.dataclass
class Settings:
    k: float = 1.0


class Config:
    k = 1.0
    table: typing.ClassVar = [1.0]
    pair = (1.0,)
    nested = Settings()
    other = 0.0

    def method(self):
        return self.k

    @classmethod
    def of_class(cls):
        return cls.k

    @staticmethod
    def static():
        return Config.k

    @property
    def computed(self):
        return 1.0


class Child(Config):
    def method(self):
        return super().method()


class Constructed:
    default = 1.0

    def __init__(self):
        self.k = self.default


class Colour(enum.Enum):
    RED = types.SimpleNamespace(k=1.0)


class Stored:
    """A descriptor."""

    def __get__(self, owner, kind):
        return STORE["k"]


class Described:
    k = Stored()


STORE = {"k": 1.0}
SCALE = 1.0
TENSOR = torch.ones(1)
SHARED = np.ones(1)
OF_ARRAY = torch.from_numpy(SHARED)

project = types.ModuleType("project")
exec(
    "from types import SimpleNamespace\nk = 1.0\nother = 0.0\nnode = SimpleNamespace(k=1.0)\n"
    "def read(): return k\ndef free(): return other\nclass Options:\n    k = 1.0\n",
    project.__dict__,
)
project.sub = types.ModuleType("project.sub")  # pyright: ignore
project.sub.k = 1.0  # pyright: ignore
sys.modules["project"] = project


def into(holder, key):
    return lambda k: holder.__setitem__(key, k)


def onto(holder, name="k"):
    return lambda k: setattr(holder, name, k)


@kind
def class_by_its_global_name():
    return lambda x: Config.k * x, onto(Config)


@kind
def class_in_a_closure():
    own = Config
    return lambda x: own.k * x, onto(Config)


@kind
def class_under_another_name():
    def residual(x):
        settings = Config
        return settings.k * x

    return residual, onto(Config)


@kind
def class_by_getattr():
    return lambda x: getattr(Config, "k") * x, onto(Config)  # noqa: B009


@kind
def class_of_an_object():
    own = Config()
    return lambda x: own.k * x, onto(Config)


@kind
def class_by_type():
    own = Config()
    return lambda x: type(own).k * x, onto(Config)


@kind
def list_of_a_class():
    own = Config()
    return lambda x: own.table[0] * x, into(Config.table, 0)


@kind
def tuple_of_a_class():
    own = Config()
    return lambda x: own.pair[0] * x, lambda k: setattr(Config, "pair", (k,))


@kind
def object_of_a_class():
    return lambda x: Config.nested.k * x, onto(Config.nested)


@kind
def method_of_a_class():
    own = Config()
    return lambda x: own.method() * x, onto(Config)


@kind
def class_method():
    return lambda x: Config.of_class() * x, onto(Config)


@kind
def static_method():
    return lambda x: Config.static() * x, onto(Config)


@kind
def method_by_super():
    own = Child()
    return lambda x: own.method() * x, onto(Config)


@kind
def class_that_is_constructed():
    return lambda x: Constructed().k * x, onto(Constructed, "default")


@kind
def monkeypatched_method():
    own = Config()
    return lambda x: own.method() * x, lambda k: setattr(Config, "method", lambda self, k=k: k)


@kind
def monkeypatched_property():
    own = Config()
    return lambda x: own.computed * x, lambda k: setattr(Config, "computed", property(lambda self, k=k: k))


@kind
def descriptor():
    own = Described()
    return lambda x: own.k * x, into(STORE, "k")


@kind
def attribute_of_a_module():
    return lambda x: project.k * x, onto(project)


@kind
def object_of_a_module():
    return lambda x: project.node.k * x, onto(project.node)


@kind
def module_of_a_module():
    return lambda x: project.sub.k * x, onto(project.sub)


@kind
def class_of_a_module():
    return lambda x: project.Options.k * x, onto(project.Options)


@kind
def function_of_a_module():
    return lambda x: project.read() * x, onto(project)


@kind
def replaced_function_of_a_module():
    return lambda x: project.free() * x, lambda k: setattr(project, "free", lambda k=k: k)


@kind
def module_passed_on():
    def read(module):
        return module.k

    return lambda x: read(project) * x, onto(project)


@kind
def module_imported_inside():
    def residual(x):
        import project  # pyright: ignore

        return project.k * x

    return residual, onto(project)


@kind
def name_imported_inside():
    def residual(x):
        from project import k  # pyright: ignore

        return k * x

    return residual, onto(project)


@kind
def table_of_globals():
    return lambda x: globals()["SCALE"] * x, into(globals(), "SCALE")


@kind
def environment():
    return lambda x: float(os.environ.get("MSLSQ_TEST", "1")) * x, lambda k: os.environ.update(MSLSQ_TEST=str(k))


@kind
def environment_by_getenv():
    return lambda x: float(os.getenv("MSLSQ_TEST", "1")) * x, lambda k: os.environ.update(MSLSQ_TEST=str(k))


@kind
def context_variable():
    variable = contextvars.ContextVar("variable", default=1.0)
    return lambda x: variable.get() * x, variable.set


@kind
def value_of_an_enum():
    return lambda x: Colour.RED.value.k * x, onto(Colour.RED.value)


@kind
def attribute_of_an_enum():
    return lambda x: Colour.RED.extra * x, onto(Colour.RED, "extra")  # pyright: ignore


@kind
def array_of_objects():
    own = np.array([1.0], dtype=object)
    return lambda x: own[0] * x, into(own, 0)


@kind
def array_of_python():
    own = array.array("d", [1.0])
    return lambda x: own[0] * x, into(own, 0)


@kind
def byte_array():
    own = bytearray(b"\1")
    return lambda x: own[0] * x, lambda k: own.__setitem__(0, int(k))


@kind
def memory_view():
    own = bytearray(b"\1")
    view = memoryview(own)
    return lambda x: view[0] * x, lambda k: own.__setitem__(0, int(k))


@kind
def view_of_a_mapping():
    own = {"k": 1.0}
    view = types.MappingProxyType(own)
    return lambda x: view["k"] * x, into(own, "k")


@kind
def values_of_a_dict():
    own = {"k": 1.0}
    view = own.values()
    return lambda x: next(iter(view)) * x, into(own, "k")


@kind
def method_of_a_dict():
    own = {"k": 1.0}
    get = own.get
    return lambda x: get("k") * x, into(own, "k")


@kind
def weak_reference():
    own = Settings()
    reference = weakref.ref(own)
    return lambda x: reference().k * x, lambda k, own=own: setattr(own, "k", k)  # pyright: ignore


@kind
def iterator():
    own = [1.0]
    forever = iter(lambda: own[0], None)
    return lambda x: next(forever) * x, into(own, 0)


@kind
def getter():
    get = operator.attrgetter("k")
    return lambda x: get(Config) * x, onto(Config)


@kind
def cached_function():
    own = {"k": 1.0}

    @functools.lru_cache
    def read():
        return own

    return lambda x: read()["k"] * x, into(own, "k")


@kind
def partial_method():
    own = Settings()

    class Holder:
        def read(self, settings):
            return settings.k

        h = functools.partialmethod(read, own)

    holder = Holder()
    return lambda x: holder.h() * x, onto(own)  # pyright: ignore


@kind
def attribute_of_a_library_object():
    logger = logging.Logger("own")
    return lambda x: logger.level * x, onto(logger, "level")


@kind
def scripted_module():
    class Scaled(nn.Module):
        k: float

        def __init__(self):
            super().__init__()
            self.k = 1.0

        def forward(self, x):
            return x * self.k

    scripted = torch.jit.script(Scaled())
    return lambda x: scripted(x), onto(scripted)


@kind
def hook_of_a_module():
    module = nn.Identity()
    hooks = [module.register_forward_hook(lambda *_: None)]

    def change(k):
        hooks.pop().remove()
        hooks.append(module.register_forward_hook(lambda module, given, out: out * k))

    change(1.0)
    return lambda x: module(x), change


@kind
def large_list():
    own = [1.0] * 10_000
    return lambda x: own[9_999] * x, into(own, 9_999)


@kind
def large_list_of_pairs():
    own = [(1.0, 2)] * 10_000
    return lambda x: own[9_999][0] * x, lambda k: own.__setitem__(9_999, (k, 2))


@kind
def large_dict():
    own = {str(number): 1.0 for number in range(10_000)}
    return lambda x: own["77"] * x, into(own, "77")


@kind
def counter():
    own = collections.Counter(k=1)
    return lambda x: own["k"] * x, into(own, "k")


@kind
def data_of_a_global_tensor():
    return lambda x: TENSOR * x, lambda k: TENSOR.data.fill_(k)


@kind
def array_under_a_global_tensor():
    return lambda x: OF_ARRAY * x, into(SHARED, 0)


class Row(list):
    pass


class Pair(tuple):
    k: float


class Table(collections.OrderedDict):
    pass


class Scaled(np.ndarray):
    pass


@kind
def attribute_of_a_list():
    own = Row([3.0])
    own.k = 1.0  # pyright: ignore
    return lambda x: own.k * x, onto(own)  # pyright: ignore


@kind
def attribute_of_a_tuple_beside_many_numbers():
    own = Pair([3.0] * 20)
    own.k = 1.0
    return lambda x: own.k * x, onto(own)


@kind
def attribute_of_a_dict():
    own = Table(other=3.0)
    own.k = 1.0  # pyright: ignore
    return lambda x: own.k * x, onto(own)  # pyright: ignore


@kind
def attribute_of_an_array():
    own = np.ones(2).view(Scaled)
    own.k = 1.0  # pyright: ignore
    return lambda x: own.k * x, onto(own)  # pyright: ignore


@kind
def attribute_of_a_global_parameter():
    return lambda x: HUNG.k * x, onto(HUNG)  # pyright: ignore


HUNG = nn.Parameter(torch.ones(1), requires_grad=False)
HUNG.k = 1.0  # pyright: ignore


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    for holder, names in ((Config, ("k", "pair", "method", "computed")), (Constructed, ("default",))):
        for name in names:
            monkeypatch.setattr(holder, name, vars(holder)[name])
    monkeypatch.setattr(project, "free", project.free)
    monkeypatch.setenv("MSLSQ_TEST", "1")


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_what_a_residual_reads_changes_its_key_and_going_back_changes_it_back(make):
    residual, change = make()
    keys = []
    for value in (2.0, 3.0, 2.0):
        change(value)
        keys.append(collect(residual).key)
        assert collect(residual).key == keys[-1]
        assert residual(torch.ones(1)).item() == value
    change(1.0)
    assert keys[1] != keys[0]
    if "tensor" not in make.__name__ and "hook" not in make.__name__:  # those have versions, and ids
        assert keys[2] == keys[0]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_walk_that_names_the_places_finds_the_same_values(make):
    residual, _ = make()
    collected = collect(residual)
    values, places = named(collected, {})
    assert values == collected.scalars
    assert len(places) == len(values)


@pytest.mark.parametrize(
    "residual", [lambda x: Config.k * x, lambda x: project.k * x, lambda x: project.Options.k * project.read() * x]
)
def test_what_a_residual_does_not_read_of_a_class_or_module_is_no_part_of_its_key(residual, monkeypatch):
    key = collect(residual).key
    monkeypatch.setattr(Config, "other", 5.0)
    monkeypatch.setattr(project, "other", 5.0)
    monkeypatch.setattr(project, "added", nn.Parameter(torch.ones(1)), raising=False)
    monkeypatch.setattr(Config, "added", nn.Parameter(torch.ones(1)), raising=False)
    assert collect(residual).key == key


def test_an_attribute_that_does_not_exist_yet_counts_once_it_does(monkeypatch):
    def residual(x):
        return getattr(project, "late", 1.0) * x + (project.later if hasattr(project, "later") else 1.0)

    keys = [collect(residual).key]
    monkeypatch.setattr(project, "late", 2.0, raising=False)
    keys.append(collect(residual).key)
    monkeypatch.setattr(project, "later", 2.0, raising=False)
    keys.append(collect(residual).key)
    assert len(set(keys)) == 3


class Learned:
    gain = nn.Parameter(torch.ones(1))


project.gain = nn.Parameter(torch.ones(1))  # pyright: ignore
project.net = nn.Linear(1, 1)  # pyright: ignore


@pytest.mark.parametrize(
    ("residual", "place"),
    [
        (lambda x: Learned.gain * x, "attribute 'gain' of class 'Learned'"),
        (lambda x: project.gain * x, "attribute 'gain' of module 'project'"),
        (lambda x: project.net(x), "attribute 'net' of module 'project'.weight"),
        (lambda x, own=Learned: own.gain * x, "attribute 'gain' of class 'Learned'"),
    ],
)
def test_a_tensor_with_derivatives_in_a_class_or_module_is_collected_by_name(residual, place):
    collected = collect(residual)
    assert place in collected.tensors and collected.tensors == collected.held


def test_tensors_behind_read_only_views_and_built_in_methods_become_inputs():
    own = {"k": torch.ones(1, requires_grad=True)}
    view, get, values = types.MappingProxyType(own), own.get, own.values()
    for residual in (lambda x: view["k"] * x, lambda x: get("k") * x, lambda x: next(iter(values)) * x):
        collected = collect(residual)
        (name,) = collected.tensors
        assert collected.rebuild({name: torch.full((1,), 3.0)})(torch.ones(1)).item() == 3.0


class Part:
    next: typing.Any = None


def test_a_walk_ends_where_objects_do_not_and_says_where(monkeypatch):
    first = part = Part()
    for _ in range(5000):  # deeper than Python's own recursion goes
        part.next = Part()
        part = part.next
    deep = collect(lambda x: first.next is not None and x)
    assert "closure cell 'first'.next" in deep.too_large
    monkeypatch.setattr(reachable, "MOST_OBJECTS", 100)
    parts = [Part() for _ in range(1000)]
    wide = collect(lambda x: parts[0] and x)
    assert "closure cell 'parts'" in wide.too_large and len(wide.scalars) < 5000
    tensors = [torch.ones(1) for _ in range(200)]
    assert len(collect(lambda x: x * tensors[0]).tensors) == 200


def test_libraries_are_not_looked_into():
    for library in (torch, np, os, logging):
        assert len(collect(lambda x, library=library: x * library.k).scalars) == 1

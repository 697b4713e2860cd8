"""What one object of a class has shown of its code holds for another one, as long as the class names the same."""

import types

import pytest
import torch
from torch import nn

from mslsq.tracing.reading.closed import Closed
from mslsq.tracing.reading.content import Content
from mslsq.tracing.reading.inputs import collect_module
from mslsq.tracing.reading.known_code import KEPT, MOST_CHANGES, KnownCodes

TEXT = """
class Own(nn.Module):
    gain = 2.0
    def residual(self, p): return self.gain * SCALE * p
"""


def written(text=TEXT, **entries):
    module = types.ModuleType("tests_of_known_code")
    vars(module).update(torch=torch, nn=nn, SCALE=1.5, **entries)
    exec(text, vars(module))
    return module


def keep(codes, own):
    collected = collect_module(own)
    closed = Closed.of(collected, ())
    assert closed is not None
    codes.keep(collected, closed)


def known(codes, module):
    """What is known of a new object, after one was kept."""
    keep(codes, module.Own())
    return codes.of(module.Own())


def test_an_object_tells_of_another_until_its_class_changes():
    codes, module = KnownCodes(), written()
    assert codes.of(module.Own()) is None
    first = known(codes, module)
    assert first is not None and codes.of(module.Own()) is first
    module.SCALE = 3.0
    assert codes.of(module.Own()) is None
    second = known(codes, module)
    assert second is not None and second is not first
    module.Own.gain = 4.0
    assert codes.of(module.Own()) is None


def test_a_class_that_changes_all_the_time_is_walked_over():
    codes, module = KnownCodes(), written()
    found = []
    for number in range(MOST_CHANGES + 2):
        module.SCALE = float(number) + 0.5
        found.append(known(codes, module) is not None)
    assert found == [True] * MOST_CHANGES + [False] * 2


def test_a_function_mode_around_it_is_no_change_of_the_class():
    codes, module = KnownCodes(), written()
    first = known(codes, module)
    with torch.device("cpu"):
        assert codes.of(module.Own()) is None
    assert codes.of(module.Own()) is first


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("gain = 2.0", "__slots__ = ('hidden',)\n    gain = 2.0"),
        TEXT.replace("SCALE", "SCALES[0]"),
        TEXT.replace("SCALE", "torch.ones(2).to(WEIGHT)"),
    ],
)
def test_what_counts_by_its_content_has_no_short_way(text):
    codes, module = KnownCodes(), written(text, SCALES=[2.0], WEIGHT=torch.ones(2))
    assert known(codes, module) is None


def test_a_class_that_was_found_to_change_unseen_is_forgotten_for_good():
    codes, module = KnownCodes(), written()
    assert known(codes, module) is not None
    codes.forget([module.Own])
    assert codes.of(module.Own()) is None and known(codes, module) is None


def test_few_classes_are_kept():
    codes, modules = KnownCodes(), [written() for _ in range(KEPT + 1)]
    for module in modules:
        assert known(codes, module) is not None
    assert codes.of(modules[0].Own()) is None and codes.of(modules[-1].Own()) is not None
    codes.clear()
    assert codes.of(modules[-1].Own()) is None


def test_what_objects_hold_is_in_the_key_of_their_content():
    module = written()

    def content(**attributes):
        own = module.Own()
        for name, value in attributes.items():
            setattr(own, name, value)
        return Content.of(own, (), {id(own): "code"})

    plain = content()
    assert plain.is_all_own and content().key == plain.key
    alike = [{"a": {}}, {"b": {}}, {"a": 1}, {"a": 1.0}, {"a": True}, {"b": 1}, {"a": (1,)}, {"a": [1]}, {"a": {1: 1}}]
    alike += [{"a": torch.ones(2)}, {"a": torch.ones(3)}, {"a": nn.Parameter(torch.ones(2))}, {"a": nn.Identity()}]
    alike += [{"a": nn.Linear(1, 1)}, {"a": nn.Linear(1, 2)}]
    from collections import OrderedDict

    alike += [{"a": OrderedDict()}, {"b": OrderedDict()}]
    keys = [content(**attributes).key for attributes in alike]
    assert len({*keys, plain.key}) == len(keys) + 1
    trained = module.Own().eval()
    assert Content.of(trained, (), {id(trained): "code"}).key != plain.key
    for foreign in (lambda p: p, {1, 2}, object(), types.SimpleNamespace(a=1), torch.Generator()):
        found = content(a=foreign)
        assert found is None or not found.is_all_own

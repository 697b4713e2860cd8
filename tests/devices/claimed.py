"""CPU tensors that claim to be on another device: what a GPU would refuse is refused here, and the numbers are real.

Every operator unwraps its tensors, runs on the CPU, and labels what it returns. What fails on CUDA, or costs there,
is seen: tensors of two devices in one operator, `.numpy()`, data that go back to the host. The device is PyTorch's slot
for backends of others ("PrivateUse1"), because a build without CUDA cannot differentiate tensors that claim CUDA. The
library asks everywhere for "cpu" or not; where it asks for "cuda", these tests see nothing.

An operator of the library's own runs there as on any device, by the operators that it is written in; a kernel of the
CPU refuses these tensors. Which of PyTorch's operators have a form on CUDA its own table tells
(`tests.devices.forms`).

The slot belongs to the process once it is taken, and the threads of the backward pass are counted before the first of
them, so the device has a process of its own (`tests.devices.elsewhere`).
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from mslsq.linear.torch_operators import FUNCTIONS
from mslsq.solvers import bound_checks
from mslsq.tracing.recording import NotRecordableError, Recorded
from tests.devices.forms import has_form_on_cuda

REAL = os.environ.get("MSLSQ_TEST_DEVICE")
"""A device that is there ("cuda"): the same tests on it. What is sent to the host is then not counted."""

NAME = "claimed" if REAL is None else REAL

TO_THE_HOST = {
    "aten::_local_scalar_dense",  # item, float, bool, int
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::_unique2",
}
"""What must know numbers of the device before it can return."""

WITHOUT_MARKS = {
    "aten::_conj": torch.ops.aten._conj_physical.default,
    "aten::_efficientzerotensor": torch.ops.aten.zeros.default,
    "aten::_neg_view": torch.ops.aten.neg.default,
}
"""Tensors that are marked "conjugate", "negative" or "zero" would lose the mark under a label."""

MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put", "aten::index_put_"}
"""CUDA takes indices from the host, and copies them."""


class TwoDevicesError(RuntimeError):
    """An operator was called with tensors of two devices."""


class NoFormError(RuntimeError):
    """An operator was called that CUDA does not have."""


class Claimed(Tensor):
    """A tensor of the CPU, `inner`, that claims to be on the other device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Claimed":
        claimed = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
            requires_grad=inner.requires_grad,
        )
        claimed.inner = inner.detach()
        return claimed

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ENTERED[-1].__torch_dispatch__(function, types, args, kwargs)

    def tolist(self) -> Any:  # PyTorch's own refuses subclasses
        ENTERED[-1].transfers["tolist"] += 1
        return self.inner.tolist()

    def __format__(self, form: str) -> str:
        return self.item().__format__(form) if not self.dim() else object.__format__(self, form)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Claimed({self.inner})"


class Device(TorchDispatchMode):
    """While it is entered, tensors can be made on the device, and `transfers` counts by name what went to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = function._schema.name
        tensors = tensors_of((args, kwargs))
        ours = [tensor for tensor in tensors if isinstance(tensor, Claimed)]
        if ours and name in FUNCTIONS:
            with self:
                return FUNCTIONS[name](*args, **kwargs)
        if ours and not has_form_on_cuda(function):
            raise NoFormError(name)
        if ours and name not in MAY_MIX:
            refuse_two_devices(name, tensors)
        labelled = bool(ours)
        if kwargs.get("device") is not None:
            labelled = torch.device(kwargs["device"]).type == NAME
            kwargs["device"] = torch.device("cpu")
        if name == "aten::_to_copy" and labelled and not ours and not kwargs.get("non_blocking"):
            self.transfers["from the host"] += 1  # waits for all that the device is doing
        self._count(name, args, bool(ours), labelled)
        function = WITHOUT_MARKS.get(name, function)
        found = function(*mapped(_bare, args), **mapped(_bare, kwargs))
        if not labelled:
            return found
        known = {id(tensor.inner): tensor for tensor in ours}  # what is written into and returned stays the same object

        return mapped(lambda x: known[id(x)] if id(x) in known else Claimed(x), found)

    def _count(self, name: str, args: Any, ours: bool, labelled: bool) -> None:
        if not ours:
            return
        indices = args[1] if name in ("aten::index", "aten::index_put", "aten::index_put_") else ()
        masks = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)
        if name in TO_THE_HOST or masks:
            self.transfers[name] += 1
        elif not labelled:
            self.transfers["to the host"] += 1
        elif name == "aten::copy_" and isinstance(args[1], Claimed) != isinstance(args[0], Claimed):
            self.transfers["copy"] += 1
        elif any(x is not None and not isinstance(x, Claimed) for x in indices):
            self.transfers["index from the host"] += 1


def mapped(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """`tree_map` of tensors, in a tenth of its time: of arguments of operators, every one of which comes by here."""
    if isinstance(tree, Tensor):
        return function(tree)
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([mapped(function, x) for x in tree])
    if kind is dict:
        return {name: mapped(function, x) for name, x in tree.items()}
    return pytree.tree_map_only(Tensor, function, tree) if isinstance(tree, tuple) else tree


def tensors_of(tree: Any) -> list[Tensor]:
    """All tensors of the arguments of an operator."""
    found: list[Tensor] = []
    mapped(found.append, tree)
    return found


def _bare(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, Claimed) else x


def _refuse_to_record(*_: Any) -> None:
    """A recording would look into the labels, and keep the CPU's tensors under them."""
    raise NotRecordableError("it runs on the claimed device")


def refuse_two_devices(name: str, tensors: list[Tensor]) -> None:
    """As CUDA does: only a number may come from the host."""
    if any(not isinstance(tensor, Claimed) and tensor.dim() for tensor in tensors):
        shapes = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise TwoDevicesError(f"{name}: {shapes}")


ENTERED: list[Device] = []


CAN_CLAIM = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
"""Newer than torch 2.9, which has no backends written in Python."""


class _Backend(getattr(backend_registration, "_DummyBackendModule", object)):
    """What PyTorch asks a backend for."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass


@contextmanager
def claimed_device() -> Iterator[Device]:
    """The device, for the rest of the process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Backend())
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(numbers, device=...) reaches the mode
    enter = torch.inference_mode.__enter__

    def enter_in_one_thread(self: torch.inference_mode) -> None:  # leaving inference mode allows threads again
        enter(self)
        torch._C._set_multithreading_enabled(False)

    Recorded.__init__ = _refuse_to_record  # type: ignore[method-assign]
    bound_checks.is_recorded_elsewhere = lambda: False  # it would take this mode for another library's tracing
    torch.inference_mode.__enter__ = enter_in_one_thread  # type: ignore[method-assign]
    # Backward passes run in this thread, where the mode is: the threads of the engine were counted before the device.
    with torch.autograd.set_multithreading_enabled(False), Device() as device:
        ENTERED.append(device)
        yield device


def there(tree: Any) -> Any:
    """All tensors of a pytree, on the device."""
    move = Claimed if REAL is None else lambda x: x.to(REAL)
    return pytree.tree_map(lambda x: move(x) if isinstance(x, Tensor) else x, tree)


def here(tree: Any) -> Any:
    """All tensors of a pytree, which must be on the device, on the CPU."""

    def bare(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        assert x.device.type != "cpu", f"a tensor of the CPU: {tuple(x.shape)}"
        return x.inner if isinstance(x, Claimed) else x.cpu()

    return pytree.tree_map(bare, tree)


def assert_same(found: Any, expected: Any, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Pytrees on the device and on the CPU, equal to rounding."""
    pairs = zip(pytree.tree_leaves(here(found)), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.detach(), other.detach(), rtol=rtol, atol=atol)

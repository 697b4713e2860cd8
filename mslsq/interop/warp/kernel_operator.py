"""`operator`: a Warp kernel as a function of tensors that every transform of PyTorch gets right."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mslsq.interop.operators import Operator
from mslsq.interop.operators.contract import Contract
from mslsq.interop.warp.launching import Launcher, check_arguments
from mslsq.interop.warp.library import WarpError
from mslsq.interop.warp.patterns import refuse_wrong_patterns
from mslsq.interop.warp.signature import Signature, read
from mslsq.validation import one_of, suggestion


def operator(
    kernel: Any,
    *,
    outputs: Sequence[str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    shared: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    adjoint: Any | None = None,
    tangent: Any | Literal["rows", "differences"] | None = None,
    second: Literal["differences"] | None = None,
    check: bool = True,
) -> Operator:
    """A Warp kernel as a function of PyTorch's tensors, under `vmap`, `grad`, `jacrev` and their nestings.

    The kernel is launched with one thread per lane, `i = wp.tid()`: one block of a cost, one entry of a `vmap`. Its
    arrays have the lanes in front: `wp.array(dtype=wp.vec3)` is a tensor (3,) per lane, `wp.array2d(dtype=float)` a
    tensor (n,), `wp.array(dtype=wp.transform)` the storage (7,) of an `SE3`. dtypes must agree with the kernel's: most
    kernels are float32, so the problem is too. All lanes of all problems are one launch, on the tensors' device.

    Warp makes the adjoint. What it makes wrong is refused: by the source of the kernel and of the `warp.func`s it
    calls (an array element or a component of a local vector that is written twice, or in terms of itself; a variable
    that a loop of unknown length multiplies), and by differences at the first call of every shape.

    Args:
        kernel: a function decorated with `@warp.kernel`.
        outputs: names of the arrays that it writes; the last one by default.
        shapes: the further axes of outputs of more than one dimension, by name.
        shared: names of arrays that have no lane axis: the same for all lanes, as an image is.
        constants: the arguments that are no arrays, by name.
        adjoint: a kernel to use instead of Warp's own adjoint. It has the arguments of `kernel` and `adj_x` for every
            floating array x: it reads those of outputs, and writes those of inputs (zeros before; add to shared ones
            with `wp.atomic_add`).
        tangent: a kernel for forward mode, with the arguments of `kernel` and `tan_x` for every floating array x: it
            reads those of inputs and writes those of outputs. "rows": from the adjoint, exact, a launch per row;
            "differences". Without it forward mode raises; solves use reverse mode.
        second: "differences": second derivatives by central differences of the adjoint. Derivatives through a solve
            need them; in float32 they have about three digits.
        check: compare the derivatives with differences at the first call of every shape (a hundredth in float32).

    Returns:
        A callable that takes the input arrays of one lane, in the kernel's order.

    Raises:
        WarpError (a ValueError): the kernel cannot be taken, with the reason and what to write instead.
        ImportError: Warp is not installed.

    Source: the adjoints are Warp's (https://github.com/NVIDIA/warp, Apache-2.0).
    """
    one_of("warp.operator: second", second, (None, "differences"), WarpError)
    signature = read(kernel, outputs, constants or {})
    shapes = dict(shapes or {})
    _look_at_names(signature, shapes, shared)
    if adjoint is not None:
        check_arguments(signature, adjoint, "adj_", "adjoint")
    else:
        _look_at_backward(signature)
        refuse_wrong_patterns(signature)
    if tangent not in (None, "rows", "differences"):
        check_arguments(signature, tangent, "tan_", "tangent")
    is_kernel = tangent is not None and not isinstance(tangent, str)
    launcher = Launcher(signature, shapes, shared, adjoint, tangent if is_kernel else None)
    return Operator(
        Contract(
            name=signature.name,
            inputs=signature.inputs,
            forward=launcher.forward,
            backward=launcher.backward,
            jvp=launcher.jvp if is_kernel else "rows" if tangent is None and second is not None else tangent,
            second=second,
            shared=frozenset(signature.inputs.index(name) for name in shared),
            one_lane=False,
            check=check,
            missing=MISSING,
        )
    )


MISSING: Mapping[str, str] = {
    "backward": "no derivative in reverse mode",
    "jvp": "no derivative in forward mode: give tangent= as a kernel, 'rows' (exact, by one launch per row) or "
    "'differences'",
    "second": "no second derivative: give second='differences'",
}
"""In the words of `operator`, what is said where a transform needs a rule that was not given."""


def _look_at_names(signature: Signature, shapes: Mapping[str, tuple[int, ...]], shared: Sequence[str]) -> None:
    for name in shared:
        if name not in signature.inputs:
            raise WarpError(f"{signature.name}: there is no input {name!r}.{suggestion(name, signature.inputs)}")
    if set(signature.inputs) <= set(shared):
        raise WarpError(f"{signature.name}: all inputs are shared; one of them must have an entry per lane.")
    for name in shapes:
        if name not in signature.outputs:
            raise WarpError(f"{signature.name}: shapes= has no output {name!r}.{suggestion(name, signature.outputs)}")
    for name in signature.outputs:
        further = signature.arrays[name].ndim - 1
        if len(shapes.get(name, ())) != further:
            raise WarpError(
                f"{signature.name}: the output {name!r} has {further} axes behind the lanes: "
                f"shapes={{{name!r}: ({'n, ' * further})}} says how long they are."
            )


def _look_at_backward(signature: Signature) -> None:
    kernel = signature.kernel
    if not kernel.options.get("enable_backward", kernel.module.options.get("enable_backward", True)):
        raise WarpError(
            f"{signature.name} was made with enable_backward=False, so Warp has no adjoint of it: give adjoint=, or "
            "leave that option out."
        )

"""Special functions that PyTorch silently differentiates as constants: Bessel functions and classical polynomials.

`torch.special.bessel_j0(x)` has no graph in plain reverse mode and a derivative of zero under `torch.func` (torch
2.13). Here polynomials are their recurrences, of which every derivative is right; the others keep PyTorch's value and
get derivatives by Taylor's polynomial, whose coefficients follow from the differential equation (Abramowitz and Stegun,
9.1.1, 9.6.1), up to the order that a derivative of a gradient through a solve needs.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mslsq.levels import largest_number

ORDER = 4
"""Derivatives that are right: the residual's, its curvature, and two more for derivatives of those."""

special: Any = torch.special


def constant(x: Tensor) -> Tensor:
    """The same numbers with derivative zero in every mode and nesting, as one operation that a graph can hold.

    `detach` under a transform detaches from the innermost level alone; it makes plain reverse mode build no graph here.
    """
    return torch.nextafter(x, x).detach()


def floating(x: Any) -> Tensor:
    """A tensor of real numbers, as PyTorch makes of integers, or of a Python number beside a tensor."""
    x = x if isinstance(x, Tensor) else torch.tensor(x, device="cpu")
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def expanded(x: Tensor, at: Tensor, derivatives: list[Tensor]) -> Tensor:
    """Σ f⁽ᵏ⁾(at) (x − at)ᵏ / k!, where `at` has the numbers of x: f(x), with its derivatives.

    An infinite derivative beside a value (at a pole) must not make that NaN: it is no term of it.
    """
    step, value = x - at, derivatives[-1] / math.factorial(len(derivatives) - 1)
    for k in range(len(derivatives) - 2, 0, -1):
        value = derivatives[k] / math.factorial(k) + step * value
    return derivatives[0] + torch.where(at.isfinite(), step, 0) * value


def bessel_derivatives(x: Tensor, value: Tensor, slope: Tensor, order: int, sign: int) -> list[Tensor]:
    """f, f', ... of a solution of x² f'' + x f' + (sign x² − order²) f = 0, which is differentiated again and again:
    x² f⁽ᵏ⁺²⁾ = −(2k + 1) x f⁽ᵏ⁺¹⁾ − (k² + sign x² − order²) f⁽ᵏ⁾ − 2 k sign x f⁽ᵏ⁻¹⁾ − k (k − 1) sign f⁽ᵏ⁻²⁾."""
    found = [value, slope]
    for k in range(ORDER - 1):
        total = (2 * k + 1) * x * found[k + 1] + (k * k - order * order + sign * x * x) * found[k]
        if k > 0:
            total = total + 2 * k * sign * x * found[k - 1]
        if k > 1:
            total = total + k * (k - 1) * sign * found[k - 2]
        found.append(-total / (x * x))
    return found


def series(x: Tensor, order: int) -> Tensor:
    """J of order 0 or 1 near zero, where the differential equation has a pole: (x / 2)ᵒʳᵈᵉʳ Σ (−x² / 4)ᵏ / (k! (k +
    order)!), up to a hundredth of float64's rounding at 1."""
    quarter, total = -x * x / 4, torch.zeros_like(x)
    for k in range(10, -1, -1):
        total = total * quarter + 1 / (math.factorial(k) * math.factorial(k + order))
    return total * x / 2 if order else total


def regular(x: Tensor, order: int) -> Tensor:
    """J₀ or J₁."""
    x = floating(x)
    near = x.abs() < 1
    far = torch.where(near, 1, x)
    at = constant(far)
    zeroth, first = special.bessel_j0(at), special.bessel_j1(at)
    value, slope = (first, zeroth - first / at) if order else (zeroth, -first)
    beyond = expanded(far, at, bessel_derivatives(at, value, slope, order, 1))
    return torch.where(near, series(torch.where(near, x, 0), order), beyond)


def singular(x: Tensor, order: int, sign: int, functions: tuple[Any, Any], scaled: bool = False) -> Tensor:
    """Y₀, Y₁ (sign 1), K₀ or K₁ (sign −1), and eˣ K, by their functions of order 0 and 1."""
    x = floating(x)
    at = constant(x)
    zeroth, first = functions[0](at), functions[1](at)
    value, slope = (first, sign * zeroth - first / at) if order else (zeroth, -first)
    found = bessel_derivatives(at, value, slope, order, sign)
    if scaled:  # the product rule with eˣ, which is its own derivative
        found = [sum((math.comb(k, j) * found[j] for j in range(1, k + 1)), found[0]) for k in range(ORDER + 1)]
    return expanded(x, at, found)


def bessel_j0(x: Tensor) -> Tensor:
    return regular(x, 0)


def bessel_j1(x: Tensor) -> Tensor:
    return regular(x, 1)


def bessel_y0(x: Tensor) -> Tensor:
    return singular(x, 0, 1, (special.bessel_y0, special.bessel_y1))


def bessel_y1(x: Tensor) -> Tensor:
    return singular(x, 1, 1, (special.bessel_y0, special.bessel_y1))


def modified_bessel_i0(x: Tensor) -> Tensor:
    """`torch.special.i0`, the same function, which has its derivatives."""
    return special.i0(x)


def modified_bessel_i1(x: Tensor) -> Tensor:
    return special.i1(x)


def modified_bessel_k0(x: Tensor) -> Tensor:
    return singular(x, 0, -1, (special.modified_bessel_k0, special.modified_bessel_k1))


def modified_bessel_k1(x: Tensor) -> Tensor:
    return singular(x, 1, -1, (special.modified_bessel_k0, special.modified_bessel_k1))


def scaled_modified_bessel_k0(x: Tensor) -> Tensor:
    return singular(x, 0, -1, (special.scaled_modified_bessel_k0, special.scaled_modified_bessel_k1), True)


def scaled_modified_bessel_k1(x: Tensor) -> Tensor:
    return singular(x, 1, -1, (special.scaled_modified_bessel_k0, special.scaled_modified_bessel_k1), True)


def spherical_bessel_j0(x: Tensor) -> Tensor:
    """sin x / x, by its series near zero: Σ (−x²)ᵏ / (2k + 1)!."""
    x = floating(x)
    near = x.abs() < 1
    far, close = torch.where(near, 1, x), torch.where(near, x, 0)
    squared, total = -close * close, torch.zeros_like(x)
    for k in range(10, -1, -1):
        total = total * squared + 1 / math.factorial(2 * k + 1)
    return torch.where(near, total, far.sin() / far)


def sinc(x: Tensor) -> Tensor:
    """sin(πx) / (πx), whose second derivative is zero or NaN at zero in PyTorch."""
    return torch.sinc(x) if x.is_complex() else spherical_bessel_j0(math.pi * floating(x))


# ---- polynomials: three-term recurrences (Abramowitz and Stegun, table 22.7)

Steps = Callable[[Tensor, int], tuple[Any, Any]]
"""Of x and k ≥ 1 the factors (a, b) in p₍ₖ₊₁₎ = a pₖ − b p₍ₖ₋₁₎."""


def recurrence(x: Any, n: Any, first: Callable[[Tensor], Tensor], steps: Steps) -> Tensor:
    """The polynomial of degree n in x, n a number or a tensor of degrees that broadcasts; 0 for n below 0.

    As many steps as the largest degree at hand are taken: a graph of these steps gives NaN for larger ones.
    """
    x = floating(x)
    previous, value = torch.ones_like(x), first(x)
    if not isinstance(n, Tensor):
        if n < 1:
            return previous if int(n) == 0 else torch.zeros_like(x)
        for k in range(1, int(n)):
            a, b = steps(x, k)
            previous, value = value, a * value - b * previous
        return value
    degrees, largest = n.trunc() if n.is_floating_point() else n, int(largest_number(n))
    found = torch.where(degrees == 0, previous, torch.where(degrees > largest, math.nan, torch.zeros_like(x)))
    for k in range(1, largest + 1):
        found = torch.where(degrees == k, value, found)
        if k < largest:
            a, b = steps(x, k)
            previous, value = value, a * value - b * previous
    return found


def _doubled(x: Tensor, k: int) -> tuple[Any, Any]:
    return 2 * x, 1


def chebyshev_polynomial_t(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: x, _doubled)


def chebyshev_polynomial_u(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: 2 * x, _doubled)


def chebyshev_polynomial_v(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: 2 * x - 1, _doubled)


def chebyshev_polynomial_w(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: 2 * x + 1, _doubled)


def shifted_chebyshev_polynomial_t(x: Any, n: Any) -> Tensor:
    return chebyshev_polynomial_t(2 * floating(x) - 1, n)


def shifted_chebyshev_polynomial_u(x: Any, n: Any) -> Tensor:
    return chebyshev_polynomial_u(2 * floating(x) - 1, n)


def shifted_chebyshev_polynomial_v(x: Any, n: Any) -> Tensor:
    return chebyshev_polynomial_v(2 * floating(x) - 1, n)


def shifted_chebyshev_polynomial_w(x: Any, n: Any) -> Tensor:
    return chebyshev_polynomial_w(2 * floating(x) - 1, n)


def hermite_polynomial_h(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: 2 * x, lambda x, k: (2 * x, 2 * k))


def hermite_polynomial_he(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: x, lambda x, k: (x, k))


def laguerre_polynomial_l(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: 1 - x, lambda x, k: ((2 * k + 1 - x) / (k + 1), k / (k + 1)))


def legendre_polynomial_p(x: Any, n: Any) -> Tensor:
    return recurrence(x, n, lambda x: x, lambda x, k: ((2 * k + 1) / (k + 1) * x, k / (k + 1)))


POLYNOMIALS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v, chebyshev_polynomial_w),
        *(shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u),
        *(shifted_chebyshev_polynomial_v, shifted_chebyshev_polynomial_w),
        *(hermite_polynomial_h, hermite_polynomial_he, laguerre_polynomial_l, legendre_polynomial_p),
    )
}
BESSEL: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(bessel_j0, bessel_j1, bessel_y0, bessel_y1, modified_bessel_i0, modified_bessel_i1, modified_bessel_k0),
        *(modified_bessel_k1, scaled_modified_bessel_k0, scaled_modified_bessel_k1, spherical_bessel_j0),
    )
}
OPERATORS: dict[str, Callable[..., Any]] = {
    "sinc": sinc,
    **{f"special_{name}": function for name, function in BESSEL.items()},
    **{
        f"special_{name}{overload}": function
        for name, function in POLYNOMIALS.items()
        for overload in ("", ".n_scalar", ".x_scalar")
    },
}
"""By operator of aten."""
FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(special, name): f for name, f in (BESSEL | POLYNOMIALS).items() if hasattr(special, name)},
    **dict.fromkeys((torch.sinc, special.sinc, Tensor.sinc), sinc),
}
"""By function of `torch.special`."""

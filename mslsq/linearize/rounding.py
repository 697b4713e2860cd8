"""What rounding does to a function: it once more, with every number it computes off by a unit in the last place.

Monte Carlo arithmetic (Parker, 1997; Vignes' CESTAC, 1974). A derivative tells what rounding of the *arguments* does;
inside of a function, of a matrix that is nearly singular, say, rounding may be made larger by far.
"""

from typing import Any

import torch
from torch import Tensor

from mslsq.private import DispatchMode, returns_a_view, writes
from mslsq.pytree import map_leaves


class Shaken(DispatchMode):
    """Within it the results of operators are off by one unit in the last place, up or down at random.

    What an operator writes into one of its arguments, and what views show, is left as it is.
    """

    def __init__(self, seed: int):
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if returns_a_view(func) or writes(func):
            return result
        return map_leaves(self._shaken, result)

    def _shaken(self, number: Any) -> Any:
        if not isinstance(number, Tensor) or not number.is_floating_point():
            return number
        ways = torch.randint(0, 2, number.shape, generator=self._generator, device="cpu").to(number)
        return number * (1 + torch.finfo(number.dtype).eps * (2 * ways - 1))

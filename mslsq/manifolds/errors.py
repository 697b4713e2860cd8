"""The one error of manifolds, and what is said of tensors where elements are meant."""

import os
import traceback

from torch import Tensor

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class ManifoldError(ValueError):
    """An element was given something that it cannot be made of."""


def of_storage(error: BaseException) -> str:
    """What to write where an error comes from `SE3.log(tensor)`, a method that was called with the numbers of an
    element; empty for other errors."""
    if not isinstance(error, (AttributeError, TypeError)):
        return ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith(HERE):
            continue
        if isinstance(frame.f_locals.get("self"), Tensor):
            return (
                f"{code.co_name} of a group was called with a tensor where an element is meant: make one of its "
                f"numbers, SE3(tensor).{code.co_name}(...), with the group's own name."
            )
        return ""
    return ""

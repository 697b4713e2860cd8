"""What is worked out once per structure: analyses, plans as tensors of a device, the choice of a solver."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Memo:
    """Belongs to one structure, and so to one plan of a solve; copies and pickles of it are empty.

    A key says what was made and all that it depends on, its device among them: a tensor of one device is never
    taken for that of another.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What stands under the key, made by the first who asks."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def clear(self) -> None:
        """Forget everything; it is made again when somebody asks."""
        with self._lock:
            self._made.clear()

    def __deepcopy__(self, memo: Any) -> "Memo":
        return Memo()

    def __reduce__(self) -> Any:
        return Memo, ()

"""What linear solvers work out once per structure: analyses, plans of operators, their choices."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Memo:
    """Belongs to one structure, and so to one plan of a solve on one device. A key says what was made, and by which
    options."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What stands under the key, made at the first request."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

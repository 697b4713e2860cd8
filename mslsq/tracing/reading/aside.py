"""What an object keeps aside: bookkeeping for its owner that no residual reads.

A problem that was carried over from another library knows where its variables came from. That is no part of what it
states, and so it is no part of what is compared between two calls.
"""

from typing import Any


class Aside:
    """Holds something that no residual reads; copies share it.

    Args:
        content: what is kept; nothing of it is copied, moved or looked into.
    """

    def __init__(self, content: Any):
        self.content = content

    def __deepcopy__(self, memo: Any) -> "Aside":
        return self

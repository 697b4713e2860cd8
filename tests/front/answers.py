"""Which calls were answered at once: from the record of a call before, without a statement."""

from typing import Any

import pytest


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str = "answered") -> list[bool]:
    """A list that grows by an entry a call of `owner.name`: whether it had an answer."""
    found: list[bool] = []
    plain = getattr(owner, name)

    def asked(*args: Any, **kwargs: Any) -> Any:
        answer = plain(*args, **kwargs)
        found.append(answer is not None)
        return answer

    patch.setattr(owner, name, asked)
    return found

"""Run all programs, or those whose names hold a word that is given: `cd benchmarks && python -m user_programs sparse`.

Some ten minutes of one processor. A program agrees; or mslsq refuses it by name; or it is told by a warning or the
status that the solution has no derivative, or is no minimum. Everything else is to be looked at.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from user_programs import MODULES, compared, states


def chosen(names: Iterable[str]) -> list[str]:
    return [name for name in names if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]


judges: dict[str, Callable[[], str]] = {name: partial(compared.run, name) for name in compared.PROGRAMS}
judges |= {name: partial(compared.reported, name, partial(states.judged, name)) for name in states.STATES}
judges["threads"] = partial(compared.reported, "threads", lambda _: states.in_threads())
names = chosen(judges)
kinds = Counter([judges[name]() for name in names])
found = ", ".join(f"{kinds[kind]} {kind}" for kind in ("agrees", "told", "refused", "look"))
print(f"{len(names)} programs of {len(MODULES)} files: {found}")

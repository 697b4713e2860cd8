"""Run all programs, or those whose names hold a word that is given: `cd benchmarks && python -m user_programs sparse`.

Twenty minutes of one processor. A program agrees; or mslsq refuses it by name; or it is told by a warning or the status
that the solution has no derivative, or is no minimum. Everything else is to be looked at.
"""

import sys
from collections import Counter

from user_programs import MODULES, compared

names = [name for name in compared.PROGRAMS if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
kinds = Counter([compared.run(name) for name in names])
found = ", ".join(f"{kinds[kind]} {kind}" for kind in ("agrees", "told", "refused", "look"))
print(f"{len(names)} programs of {len(MODULES)} files: {found}")

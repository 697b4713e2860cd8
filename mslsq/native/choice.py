"""Whether a solve may run native programs, and whether it waits for the compiler: one function decides."""

import os
from typing import Literal

import torch

from mslsq.private import is_tracing_or_dispatching
from mslsq.validation import one_of

Native = Literal["auto", "wait", "never"]
"""Use programs that are compiled, and compile others beside; wait for the compiler; use none."""

CHOICES: tuple[Native, ...] = ("auto", "wait", "never")
VARIABLE = "MSLSQ_NATIVE"


def choice(option: Native, by_itself: bool = True) -> Native:
    """What holds for a solve whose solver has this option.

    The stricter word of the option and of the environment variable MSLSQ_NATIVE holds: "never", else "wait", else
    "auto". Under `torch.use_deterministic_algorithms(True)` "auto" is "wait": a program that is ready in one run and
    not in the next would change the last bits of a result.

    "auto" is "never" where a program may not come `by_itself`.

    A solve that something else records runs none, whatever is asked for: programs cannot leave their process.

    Raises:
        ValueError: MSLSQ_NATIVE is none of the three.
    """
    named = os.environ.get(VARIABLE, "").strip() or "auto"
    if named not in CHOICES:
        one_of(f"the environment variable {VARIABLE}", named, CHOICES)
    if "never" in (option, named) or is_recorded_elsewhere():
        return "never"
    if "wait" in (option, named) or torch.are_deterministic_algorithms_enabled():
        return "wait"
    return "auto" if by_itself else "never"


def is_switched_off() -> bool:
    """Does the environment variable MSLSQ_NATIVE forbid programs?"""
    return os.environ.get(VARIABLE) == "never"


def is_recorded_elsewhere() -> bool:
    """Does something outside of the solve write down or count what it does: `torch.export`, `make_fx`, `torch.jit`, a
    dispatch mode? (Dynamo never looks into a solve.)"""
    return is_tracing_or_dispatching() or torch.compiler.is_exporting() or torch.compiler.is_compiling()

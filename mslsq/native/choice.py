"""Whether a solve may run native programs, and whether it waits for the compiler: one function decides."""

import os
from typing import Literal

import torch

from mslsq.validation import one_of

Native = Literal["auto", "wait", "never"]
"""Use programs that are compiled, and compile others beside; wait for the compiler; use none."""

CHOICES: tuple[Native, ...] = ("auto", "wait", "never")
VARIABLE = "MSLSQ_NATIVE"


def choice(option: Native | None) -> Native:
    """What holds for a solve whose solver has this option; without one, what MSLSQ_NATIVE says, or "never".

    The stricter word of the option and of the environment variable MSLSQ_NATIVE holds: "never", else "wait", else
    "auto". Under `torch.use_deterministic_algorithms(True)` "auto" is "wait": a program that is ready in one run and
    not in the next would change the last bits of a result.

    Raises:
        ValueError: MSLSQ_NATIVE is none of the three.
    """
    named = os.environ.get(VARIABLE, "").strip() or ("never" if option is None else "auto")
    one_of(f"the environment variable {VARIABLE}", named, CHOICES)
    if "never" in (option, named):
        return "never"
    if "wait" in (option, named) or torch.are_deterministic_algorithms_enabled():
        return "wait"
    return "auto"

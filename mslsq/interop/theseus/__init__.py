"""Objectives, layers and cost functions of Theseus (theseus-ai), which has to be installed only where they are used."""

from mslsq.interop.theseus.layer import TheseusLayer, from_theseus_layer
from mslsq.interop.theseus.library import TheseusError
from mslsq.interop.theseus.problem import Inputs, TheseusProblem, from_theseus
from mslsq.interop.theseus.reverse import as_theseus_cost

__all__ = [
    "Inputs",
    "TheseusError",
    "TheseusLayer",
    "TheseusProblem",
    "as_theseus_cost",
    "from_theseus",
    "from_theseus_layer",
]

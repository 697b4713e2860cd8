"""Schur complements: blocks that do not touch each other are eliminated first, one small factorisation each."""

from mslsq.linear.schur.solver import Schur

__all__ = ["Schur"]

"""Residuals as different users would write them: material for `closed_code.py`, not for imitation."""

from users import costs, functions, objects

EVERYONE = {**functions.WRITTEN, **objects.WRITTEN, **costs.WRITTEN}
"""By name what makes (a residual or a `Problem`, the start, the other arguments)."""

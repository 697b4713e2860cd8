"""The one error of manifolds."""


class ManifoldError(ValueError):
    """An element was given something that it cannot be made of."""

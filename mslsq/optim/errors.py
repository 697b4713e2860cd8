"""What can be wrong with an optimizer's options and parameters, and with the residuals that a closure returns."""


class OptimizerError(ValueError):
    """An option or a parameter that the optimizer cannot take."""


class ResidualError(ValueError):
    """A closure did not return residuals that can be differentiated."""

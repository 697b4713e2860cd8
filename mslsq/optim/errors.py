"""What can be wrong with an optimizer's options and parameters, and with the residuals that a closure returns."""


class OptimizerError(ValueError):
    """An option or a parameter that the optimizer cannot take."""


class ResidualError(ValueError):
    """A closure did not return residuals that can be differentiated."""


NO_GRAPH = (
    "LevenbergMarquardt: the residuals have no graph that leads to the parameters. Look for torch.no_grad() or "
    "inference_mode() around or inside the closure, for .detach(), .data, .item() or NumPy in it, and for parameters "
    "of another model."
)

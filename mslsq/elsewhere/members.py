"""What problems and variables have in other libraries; one that is asked for it says our word."""

from collections.abc import Mapping

NAMES_OF_PROBLEMS: Mapping[str, str] = {
    **dict.fromkeys(
        ("optimize", "Optimize", "solve", "Solve", "optimizeSafely", "minimize", "fit", "run"),
        "mslsq.solve(problem, values)",
    ),
    **dict.fromkeys(
        (
            *("add", "push_back", "add_factors", "emplace_shared", "AddResidualBlock", "add_residual_block"),
            *("addEdge", "add_edge", "addVertex", "add_vertex", "AddParameterBlock", "add_parameter_block", "update"),
        ),
        "costs are given to mslsq.Problem(*costs); of one that grows problem.extended(*costs) is the next",
    ),
    **dict.fromkeys(
        ("erase", "RemoveResidualBlock", "remove_residual_block", "RemoveParameterBlock", "removeEdge"),
        "a new mslsq.Problem of the costs that stay; mslsq.marginalized(problem, values, blocks) keeps what was known",
    ),
    **dict.fromkeys(
        ("error", "error_metric", "chi2", "activeChi2", "objective", "Evaluate", "evaluate", "cost_value"),
        "problem.cost(values), which is ½Σρ; mslsq.evaluate(problem, values) by term, problem.residuals(values)",
    ),
    **dict.fromkeys(("residual", "errors", "error_vector"), "problem.residuals(values), by cost"),
    **dict.fromkeys(
        ("linearize", "jacobian", "jacobians", "hessian", "linear_graph"),
        "mslsq.solve linearizes; torch.func.jacfwd(lambda x: problem.residuals({name: x}))(x) is a Jacobian, and "
        "mslsq.check_jacobian compares those of a cost",
    ),
    **dict.fromkeys(
        ("SetParameterBlockConstant", "set_parameter_block_constant", "setFixed", "set_fixed", "fix"),
        "variable.fixed(index), a member of mslsq.Problem(...); components=... holds parts of a block",
    ),
    **dict.fromkeys(
        ("SetParameterization", "SetManifold", "set_manifold", "set_parameterization"),
        "the manifold is the variable's: mslsq.Variable(name, mslsq.SE3, count)",
    ),
    **dict.fromkeys(
        ("SetParameterLowerBound", "SetParameterUpperBound", "set_bounds"),
        "bounds are the variable's: mslsq.Variable(name, mslsq.Euclidean(n), count, lower=..., upper=...)",
    ),
    **dict.fromkeys(
        ("marginalCovariance", "computeMarginals", "compute_marginals", "marginals", "covariance"),
        "mslsq.covariance(problem, solution, name)",
    ),
    **dict.fromkeys(
        ("optim_vars", "aux_vars", "keys", "variables_by_name", "get_optim_var"),
        "problem.variables; data are those of the costs, problem[name]",
    ),
    **dict.fromkeys(("factors", "cost_functions", "get_cost_function", "at", "edges"), "problem.costs, problem[name]"),
    **dict.fromkeys(("size", "nrFactors", "NumResidualBlocks", "num_residual_blocks"), "len(problem.costs)"),
    **dict.fromkeys(("dim", "NumResiduals"), "problem.num_rows, of a block of each cost"),
}
"""What problems, graphs and objectives have in other libraries; what it is of a `Problem`."""

NAMES_OF_VARIABLES: Mapping[str, str] = {
    **dict.fromkeys(
        ("tensor", "value", "data", "estimate", "get", "numpy", "x", "initial_guess", "init", "start"),
        "a variable holds no numbers: the start is given to mslsq.solve(problem, {name: start}), the solution is "
        "solution.value[name]",
    ),
    **dict.fromkeys(
        ("setEstimate", "set_estimate", "set", "update", "insert", "assign"),
        "a variable holds no numbers: the start is given to mslsq.solve(problem, {name: start})",
    ),
    **dict.fromkeys(
        ("setFixed", "set_fixed", "fix", "freeze", "constant", "SetConstant", "is_fixed"),
        "variable.fixed(index), a member of mslsq.Problem(...)",
    ),
    **dict.fromkeys(("dim", "dof", "DoF", "tangent_dim", "ndim"), "variable.space.tangent_dim"),
    **dict.fromkeys(("shape", "numel", "size"), "variable.count blocks of variable.space"),
    **dict.fromkeys(
        ("retract", "local", "local_coordinates", "Plus", "Minus", "between", "compose"),
        "those are of elements: mslsq.SE3 and others",
    ),
    **dict.fromkeys(("bounds", "min", "max"), "variable.lower, variable.upper"),
}
"""What variables have in other libraries; what it is of a `Variable`."""


def here(name: str, names: Mapping[str, str]) -> str:
    """The end of an error that says our word; nothing where there is none."""
    return f". Here: {names[name]}." if name in names else ""

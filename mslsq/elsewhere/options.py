"""Options of other libraries' solvers and calls, attributes of their solutions; sentences that say ours."""

from collections.abc import Mapping

OPTIONS_OF_SOLVERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("max_iterations", "max_iter", "maxiter", "max_num_iterations", "max_nfev", "maxfev", "steps"),
        "max_steps=... is the number of steps",
    ),
    **dict.fromkeys(
        ("function_tolerance", "relativeErrorTol", "rel_err_tolerance", "cost_tol", "rtol"),
        "ftol=... ends a solve by the change of the cost",
    ),
    **dict.fromkeys(
        ("absoluteErrorTol", "abs_err_tolerance", "atol"),
        "there is no absolute tolerance of the cost; ftol=..., gtol=... and xtol=... end a solve",
    ),
    **dict.fromkeys(("gradient_tolerance", "grad_tol"), "gtol=... ends a solve by the gradient"),
    **dict.fromkeys(("parameter_tolerance", "step_tolerance", "x_tol"), "xtol=... ends a solve by the step"),
    **dict.fromkeys(
        ("damping", "lambda_initial", "lambdaInitial", "initial_lambda", "initial_mu", "lam", "factor"),
        "LevenbergMarquardt(initial_damping=...) is the first damping; mostly the default serves",
    ),
    **dict.fromkeys(
        ("initial_trust_region_radius", "trust_region_init", "deltaInitial", "radius"),
        "Dogleg(initial_radius=...) is the first radius",
    ),
    **dict.fromkeys(
        ("linear_solver_type", "linear_solver_cls", "linear_solver_kwargs", "linearSolverType", "tr_solver", "lin_sol"),
        "linear_solver=mslsq.linear.Cholesky() or another of mslsq.linear",
    ),
    **dict.fromkeys(
        ("minimizer_progress_to_stdout", "verbosity", "verbosityLM", "disp"), "verbose=True prints a table"
    ),
    **dict.fromkeys(("max_solver_time_in_seconds", "timeout", "max_time"), "time_budget=... are the seconds"),
    **dict.fromkeys(("num_threads", "n_jobs", "workers"), "torch.set_num_threads(...) says how many threads there are"),
    **dict.fromkeys(("step_size", "lr", "learning_rate"), "the length of a step is found by the solver, not given"),
    "end_iter_callback": "callback=... is called after every step",
    "x_scale": 'variables are scaled by the Jacobian; LevenbergMarquardt(scaling="identity") does without',
}
"""Of solvers in other libraries; sentences that say ours."""

OPTIONS_OF_CALLS: Mapping[str, str] = {
    "method": "solver=mslsq.LevenbergMarquardt(), mslsq.Dogleg() or mslsq.GaussNewton()",
    "optimizer": "solver=mslsq.LevenbergMarquardt(), mslsq.Dogleg() or mslsq.GaussNewton()",
    "optimizer_kwargs": "options belong to the solver: solver=mslsq.LevenbergMarquardt(max_steps=...)",
    "options": "options belong to the solver: solver=mslsq.LevenbergMarquardt(max_steps=...)",
    "f_scale": "the scale belongs to the loss: loss=mslsq.Huber(1.0)",
    "loss_function": "loss=mslsq.Huber(1.0) or another robust loss",
    "kernel": "loss=mslsq.Huber(1.0) or another robust loss",
    "jac_sparsity": "sparsity is found by itself; a Problem of cost functions states it",
    "diff_step": "derivatives are exact, nothing is differenced",
    "kwargs": "args=({'name': tensor},): arguments are any pytrees",
    "Dfun": "jac=... is the Jacobian",
    "fprime": "jac=... is the Jacobian",
    "fun": "the residual is the first argument",
    "f": "the residual or model is the first argument",
    "xdata": "curve_fit(model, t, y, p0): t are the points; mslsq.interop.scipy.curve_fit has SciPy's order",
    "ydata": "curve_fit(model, t, y, p0): y are the data; mslsq.interop.scipy.curve_fit has SciPy's order",
    "full_output": "the result has all: value, covariance, cost, status, history",
    "check_finite": 'nan_policy="raise" refuses data that are not finite',
    "weights": "sigma=... are standard deviations, 1 / weights",
    "backward_mode": "adjoint=mslsq.Implicit(), Unrolled(), Truncated(...) or DirectLossMinimization(...)",
    "x": "x0 is the start",
    "initial_guess": "the start is the second argument",
    "initial_values": "the start is the second argument",
    "input_tensors": "values are the start of all variables, data=... replaces tensors of costs",
    "vectorize": "blocks are always vectorised",
}
"""Of calls in other libraries; options of solvers are known beside."""

ATTRIBUTES_OF_SOLUTIONS: Mapping[str, str] = {
    **dict.fromkeys(("x", "popt", "params", "best_solution", "best_values", "xopt", "parameters"), ".value"),
    **dict.fromkeys(("success", "converged_mask"), ".converged"),
    **dict.fromkeys(("nfev", "num_fun_evals"), ".num_evaluations"),
    **dict.fromkeys(
        ("njev", "nhev", "num_jac_evals"),
        ".num_evaluations counts residuals; Jacobians are not counted apart, of rejected steps there may be none",
    ),
    **dict.fromkeys(
        ("nit", "niter", "iterations", "num_iterations", "num_iters", "converged_iter", "steps"), ".num_steps"
    ),
    **dict.fromkeys(("final_cost", "error", "last_err", "best_err", "chisqr", "loss"), ".cost, which is ½Σρ"),
    **dict.fromkeys(("grad", "optimality", "gradient"), ".gradient_norm"),
    **dict.fromkeys(("err_history", "trajectory", "infodict"), ".history"),
    **dict.fromkeys(("BriefReport", "FullReport", "summary", "report", "termination_type"), ".message()"),
    **dict.fromkeys(
        ("pcov", "cov", "covar", "cov_x", "hess_inv"),
        "mslsq.covariance(problem, solution, name); a CurveFit has .covariance",
    ),
    **dict.fromkeys(
        ("fun", "residual", "residuals", "fvec"),
        "the residual at .value; of a Problem problem.residuals(solution.value), weighted mslsq.evaluate(...)",
    ),
    **dict.fromkeys(("jac", "jacobian", "J"), "torch.func.jacfwd(residual)(solution.value)"),
    **dict.fromkeys(("values", "at", "estimate", "optim_vars", "atPose3", "atPose2", "atVector"), ".value[name]"),
    "active_mask": ".active",
    **dict.fromkeys(("msg", "mesg"), ".message()"),
    "info": ".status and .message()",
}
"""What the solutions of other libraries have; what it is of a `Solution`."""

ATTRIBUTES_OF_FITS: Mapping[str, str] = {
    **dict.fromkeys(("popt", "x", "params", "best_values", "parameters", "beta", "coefficients"), ".value"),
    **dict.fromkeys(("pcov", "cov", "covar", "cov_beta", "covariance_matrix", "cov_params"), ".covariance"),
    **dict.fromkeys(("perr", "stderr", "sd_beta", "bse", "errors", "uncertainties", "std_errors"), ".standard_errors"),
    **dict.fromkeys(("chisqr", "chisq", "chi2", "sum_square"), ".chi_square"),
    **dict.fromkeys(("redchi", "red_chisq", "res_var", "reduced_chisq"), ".reduced_chi_square"),
    **dict.fromkeys(("best_fit", "eval", "fittedvalues"), ".predict(t)"),
    **dict.fromkeys(("fit_report", "summary"), ".report()"),
    **dict.fromkeys(("conf_interval", "ci_report", "conf_int"), ".confidence_interval(level, method)"),
    **dict.fromkeys(("rsquared", "R2"), ".r_squared"),
    **dict.fromkeys(("fun", "residual", "residuals", "fvec", "resid"), "model(fit.value, t) - y, over sigma"),
    **dict.fromkeys(
        (
            *("cost", "status", "num_steps", "num_evaluations", "nfev", "nit", "converged", "success", "message"),
            *("mesg", "history", "infodict", "ier"),
        ),
        ".solution has the cost, the status and the steps of the solve",
    ),
}
"""What the fits of SciPy, lmfit, statsmodels and ODRPACK have; what it is of a `CurveFit`."""

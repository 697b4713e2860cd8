"""`mslsq.optim.LevenbergMarquardt` beside optimizers of PyTorch, each with the same seconds of processor time.

    python benchmarks/optim.py                         # all problems, 3 seconds each: six minutes
    python benchmarks/optim.py --problem pendulum --seconds 10

Every optimizer starts from the same weights and minimises the same sum of squares; one thread. Adam's learning rate
falls linearly to zero over its time, which needs it to be known; the better of two rates is to be read. The table has
medians over three seeds, and the range: the root mean square of the training residuals, and of the error at points not
seen in training, which is what counts.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from scipy.integrate import solve_ivp
from timing import print_machine, print_table
from torch import Tensor, nn

from mslsq.optim import LevenbergMarquardt, PerSample

D = torch.float64
Closure = Callable[[], Tensor]


class Problem(NamedTuple):
    model: nn.Module
    batch: Callable[[], Closure]
    """Residuals of the next batch, as a closure."""
    error: Callable[[], float]
    """Against the truth."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Of Levenberg-Marquardt."""


def network(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(D)


def rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


def uniform(count: int, dim: int, seed: int) -> Tensor:
    return 2 * torch.rand(count, dim, generator=torch.Generator().manual_seed(seed), dtype=D) - 1


def fixed(closure: Closure) -> Callable[[], Closure]:
    return lambda: closure


def surface(x: Tensor) -> Tensor:
    return torch.sin(3 * x[:, :1] + x[:, 1:2] ** 2) * torch.exp(-x[:, 1:2])


def smooth(seed: int) -> Problem:
    model, x, unseen = network(2, 20, 20, 1), uniform(1000, 2, seed), uniform(2000, 2, seed + 100)
    return Problem(model, fixed(lambda: model(x) - surface(x)), lambda: rms(model(unseen) - surface(unseen)))


def noisy(seed: int) -> Problem:
    """Noise of 0.1 on 300 points; more parameters than the data support."""
    model, x, unseen = network(1, 16, 16, 1), uniform(300, 1, seed), uniform(2000, 1, seed + 100)
    noise = 0.1 * torch.randn(300, 1, generator=torch.Generator().manual_seed(seed + 7), dtype=D)
    y = torch.sin(6 * x) + noise
    return Problem(model, fixed(lambda: model(x) - y), lambda: rms(model(unseen) - torch.sin(6 * unseen)))


def noisy_with_decay(seed: int) -> Problem:
    """The same with the weight decay that a Gaussian prior of unit width means at noise 0.1, for Levenberg-Marquardt
    and AdamW alike."""
    return noisy(seed)._replace(options={"weight_decay": 0.01})


def pendulum(seed: int) -> Problem:
    """u'' + sin u = 0, u(0) = 1, u'(0) = 0 for t up to 8, from the equation alone."""
    model, t = network(1, 20, 20, 1), torch.linspace(0, 8, 200, dtype=D)
    truth = solve_ivp(lambda _, z: (z[1], -torch.sin(torch.tensor(z[0])).item()), (0, 8), (1, 0), t_eval=t, rtol=1e-10)

    def u(model: nn.Module, t: Tensor) -> Tensor:
        return 1 + (t / 4).square() * model((t / 4 - 1)[None])[0]

    def residual(model: nn.Module, t: Tensor) -> Tensor:
        slope = torch.func.grad(u, 1)
        return torch.func.grad(lambda t: slope(model, t))(t) + torch.sin(u(model, t))

    exact = torch.tensor(truth.y[0], dtype=D)
    predicted = PerSample(model, u, t)
    return Problem(model, fixed(PerSample(model, residual, t)), lambda: rms(predicted() - exact))


def deconvolution(seed: int) -> Problem:
    """A signal seen through a blur of a tenth of its length, noise 1e-4: each residual depends on all samples."""
    model, x = network(1, 20, 20, 1), torch.linspace(-1, 1, 200, dtype=D)[:, None]
    signal = torch.exp(-20 * (x + 0.3).square()) + 0.5 * torch.tanh(20 * (x - 0.4))
    blur = torch.exp(-0.5 * ((x - x.T) / 0.1).square())
    blur = blur / blur.sum(1, keepdim=True)
    y = blur @ signal + 1e-4 * torch.randn(200, 1, generator=torch.Generator().manual_seed(seed), dtype=D)
    return Problem(model, fixed(lambda: blur @ model(x) - y), lambda: rms(model(x) - signal))


def wide(seed: int) -> Problem:
    """40,000 parameters, 1,000 points in ten dimensions."""
    model, x, unseen = network(10, 190, 190, 1), uniform(1000, 10, seed), uniform(2000, 10, seed + 100)

    def truth(x: Tensor) -> Tensor:
        return torch.sin(x[:, :5].sum(1, keepdim=True)) + x[:, 5:6] * x[:, 6:7]

    return Problem(model, fixed(lambda: model(x) - truth(x)), lambda: rms(model(unseen) - truth(unseen)))


def batches(seed: int) -> Problem:
    """50,000 noisy samples in batches of 128: a batch's own minimum is far from that of all."""
    model, x, unseen = network(4, 20, 20, 1), uniform(50_000, 4, seed), uniform(2000, 4, seed + 100)
    generator = torch.Generator().manual_seed(seed + 7)
    y = surface(x) + 0.3 * torch.randn(len(x), 1, generator=generator, dtype=D)

    def batch() -> Closure:
        which = torch.randint(len(x), (128,), generator=generator)
        return lambda: model(x[which]) - y[which]

    # The best of min_damping 0, 0.1, 1, 10 and lr 1, 0.3 for Levenberg-Marquardt.
    options = {"min_damping": 10.0, "lr": 0.3}
    return Problem(model, batch, lambda: rms(model(unseen) - surface(unseen)), options)


PROBLEMS = {
    "smooth": smooth,
    "noisy": noisy,
    "noisy, decay": noisy_with_decay,
    "pendulum": pendulum,
    "deconvolution": deconvolution,
    "wide": wide,
    "batches": batches,
}
Step = Callable[[float], Any]


def levenberg_marquardt(problem: Problem) -> Step:
    optimizer = LevenbergMarquardt(problem.model.parameters(), **problem.options)
    return lambda share: optimizer.step(problem.batch())


def adam(lr: float, decoupled: bool = False) -> Callable[[Problem], Step]:
    def prepared(problem: Problem) -> Step:
        decay = problem.options.get("weight_decay", 0.01)
        parameters = list(problem.model.parameters())
        # AdamW's decay is relative to the mean of squares that the others minimise the half sum of.
        optimizer: Any = (
            torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
            if decoupled
            else torch.optim.Adam(parameters, lr=lr)
        )

        def step(share: float) -> None:
            optimizer.param_groups[0]["lr"] = lr * (1 - share)
            optimizer.zero_grad()
            problem.batch()().square().mean().backward()
            optimizer.step()

        return step

    return prepared


def lbfgs(problem: Problem) -> Step:
    optimizer = torch.optim.LBFGS(
        problem.model.parameters(), history_size=50, line_search_fn="strong_wolfe", tolerance_change=0, tolerance_grad=0
    )

    def step(share: float) -> None:
        residual = problem.batch()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = residual().square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # pyright: ignore[reportArgumentType]

    return step


METHODS: dict[str, Callable[[Problem], Step]] = {
    "LevenbergMarquardt": levenberg_marquardt,
    "Adam, 1e-2": adam(1e-2),
    "Adam, 1e-3": adam(1e-3),
    "AdamW, 1e-2": adam(1e-2, decoupled=True),
    "L-BFGS": lbfgs,
}


def run(
    make: Callable[[int], Problem], method: Callable[[Problem], Step], seed: int, seconds: float
) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    problem = make(seed)
    step, steps, begin = method(problem), 0, time.process_time()
    while (gone := time.process_time() - begin) < seconds:
        step(gone / seconds)
        steps += 1
    return rms(problem.batch()()), problem.error(), steps, sum(p.numel() for p in problem.model.parameters())


def summary(values: list[float]) -> str:
    return f"{statistics.median(values):.1e} ({min(values):.1e} to {max(values):.1e})"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Training by least squares beside other optimizers.")
    parser.add_argument("--problem", choices=tuple(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine(["torch", "mslsq"])
    for name in [options.problem] if options.problem else PROBLEMS:
        found: dict[str, list[tuple[Any, ...]]] = {method: [] for method in METHODS}
        for seed in range(options.seeds):  # all methods of a seed in turn: a burst of load meets all
            for method, prepare in METHODS.items():
                found[method].append(run(PROBLEMS[name], prepare, seed, options.seconds))
        rows = [
            (
                method,
                summary([r[0] for r in runs]),
                summary([r[1] for r in runs]),
                statistics.median(r[2] for r in runs),
            )
            for method, runs in found.items()
        ]
        size = found["L-BFGS"][0][3]
        print_table(
            f"### {name}: {size} parameters, {options.seconds:g} s each",
            ("optimizer", "rms residual", "rms error", "steps"),
            rows,
        )


if __name__ == "__main__":
    main()

"""The residual of Theseus' issue 650, as its author writes it: maps that are multiples of each other, the errors of all
ordered pairs written slice by slice into one tensor, in one cost function over one vector.

The issue has 8 maps of 256 cells; Theseus takes 9 to 14 s an iteration for them, so that 32 cells are the default here.
"""

import os

import theseus as th
import torch

MAPS, CELLS = 8, int(os.environ.get("CELLS", "32"))
PAIRS = [(i, j) for i in range(MAPS) for j in range(MAPS) if i != j]


def error_fn(optim_vars, aux_vars):
    maps, (ratios, prior) = optim_vars[0].tensor, aux_vars
    error = torch.zeros(len(maps), (len(PAIRS) + 1) * CELLS, dtype=maps.dtype)
    for number, (i, j) in enumerate(PAIRS):
        m_i, m_j = maps[:, i * CELLS : (i + 1) * CELLS], maps[:, j * CELLS : (j + 1) * CELLS]
        error[:, number * CELLS : (number + 1) * CELLS] = ratios.tensor[:, number] * m_i - m_j
    error[:, len(PAIRS) * CELLS :] = maps[:, :CELLS] - prior.tensor
    return error


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(MAPS, CELLS, generator=generator, dtype=torch.float64) + 0.5
    ratios = torch.stack([maps[j] / maps[i] for i, j in PAIRS])
    ratios = ratios + 0.05 * torch.randn(ratios.shape, generator=generator, dtype=torch.float64)
    objective = th.Objective(dtype=torch.float64)
    vector = th.Vector(tensor=torch.ones(1, MAPS * CELLS, dtype=torch.float64), name="maps")
    data = [th.Variable(ratios[None], name="ratios"), th.Variable(maps[:1], name="prior")]
    weight = th.ScaleCostWeight(torch.ones(1, 1, dtype=torch.float64))
    rows = (len(PAIRS) + 1) * CELLS
    objective.add(th.AutoDiffCostFunction([vector], error_fn, rows, weight, aux_vars=data, autograd_mode="dense"))
    optimizer = th.LevenbergMarquardt(objective, th.CholeskyDenseSolver, max_iterations=20)
    layer = th.TheseusLayer(optimizer)
    for _ in range(3):
        layer.forward({"maps": torch.ones(1, MAPS * CELLS, dtype=torch.float64)}, {"backward_mode": "implicit"})


if __name__ == "__main__":
    main()

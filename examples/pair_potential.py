"""An operator in C++ inside a fit: Morse potentials from energies and forces of small molecules.

    python examples/pair_potential.py --out outputs/pair_potential

The operator (pair_potential.cpp) knows one molecule and reads raw memory; `mslsq.interop.operators.wrap` gives it
`vmap`, contiguous tensors and a check of its derivatives. The reference is synthetic: 60 distorted molecules (H2, O2,
water, hydrogen peroxide), their energies (eV) and forces (eV/Å) from known potentials, with noise. PyTorch compiles the
operator at the first call: a C++ compiler and ninja have to be there.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils import cpp_extension

import mslsq
from mslsq.interop.operators import wrap

KINDS = ("H-H", "O-H", "O-O")
TRUE = [[4.7, 1.9, 0.74], [4.6, 2.3, 0.97], [5.1, 2.6, 1.25]]  # depth (eV), width (1/Å), length (Å)
MOLECULES = {
    "HH": [[0, 0, 0], [0.74, 0, 0]],
    "OO": [[0, 0, 0], [1.25, 0, 0]],
    "OHH": [[0, 0, 0], [0.97, 0, 0], [-0.24, 0.94, 0]],
    "OOHH": [[0, 0, 0], [1.3, 0, 0], [-0.2, 0.95, 0], [1.5, -0.5, 0.8]],
}
ENERGY, FORCE, ATOMS = 0.01, 0.05, 4
"""Noise in eV and eV/Å; the largest molecule."""


def compiled() -> Any:
    """The operator, as a function of tensors that every transform gets right."""
    source = Path(__file__).with_suffix(".cpp")
    cpp: Any = cpp_extension.load("pair_potential", [str(source)], extra_cflags=["-O2"])
    return wrap(
        lambda parameters, positions, kinds: tuple(cpp.values(parameters, positions, kinds)),
        backward=lambda inputs, cotangents: (*cpp.backward(*inputs, *cotangents), None),
        name="pair_potential",
    )


def molecule(atoms: str, places: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Positions (4, 3), padded, and the kind of every pair (4, 4), -1 where there is none."""
    positions, kinds = torch.zeros(ATOMS, 3), torch.full((ATOMS, ATOMS), -1)
    positions[: len(atoms)] = torch.tensor(places, dtype=positions.dtype)
    for i, first in enumerate(atoms):
        for j, second in enumerate(atoms):
            kinds[i, j] = (first + second).count("O")
    return positions, kinds


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Morse potentials fitted through an operator in C++.")
    parser.add_argument("--out", type=Path, default=Path("outputs/pair_potential"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    random = torch.Generator().manual_seed(0)
    pair_potential, true = compiled(), torch.tensor(TRUE)
    drawn = [molecule(*one) for one in list(MOLECULES.items()) * 15]
    kinds = torch.stack([kind for _, kind in drawn])
    positions = torch.stack([place for place, _ in drawn])
    positions = positions + 0.12 * torch.randn(positions.shape, generator=random)
    energy, forces = torch.func.vmap(pair_potential, in_dims=(None, 0, 0))(true, positions, kinds)
    energy = energy + ENERGY * torch.randn(energy.shape, generator=random)
    forces = forces + FORCE * torch.randn(forces.shape, generator=random)

    @mslsq.cost
    def reference(parameters, positions, kinds, energy, forces):
        found, pulls = pair_potential(parameters.reshape(3, 3), positions, kinds)
        there = (kinds.diagonal() >= 0)[:, None]
        return torch.cat([(found - energy)[None] / ENERGY, torch.where(there, (pulls - forces) / FORCE, 0.0).flatten()])

    parameters = mslsq.Variable("parameters", mslsq.Euclidean(9))
    problem = mslsq.Problem(reference(parameters, positions=positions, kinds=kinds, energy=energy, forces=forces))
    start = torch.tensor([[3.0, 1.5, 1.0]]).expand(3, 3).flatten()
    solution = mslsq.solve(problem, {"parameters": start})
    found = solution.value["parameters"].reshape(3, 3)
    errors = mslsq.covariance(problem, solution, "parameters").diagonal(dim1=-2, dim2=-1).sqrt().reshape(3, 3)
    for kind, value, error in zip(KINDS, found, errors, strict=True):
        stated = ", ".join(f"{v:.4f} ± {e:.4f}" for v, e in zip(value.tolist(), error.tolist(), strict=True))
        print(f"{kind}: depth, width, length = {stated}")

    axes = (figure := Figure(figsize=(6, 4))).subplots()
    distance = torch.linspace(0.6, 2.5, 200)
    for kind, (depth, width, length) in zip(KINDS, found, strict=True):
        axes.plot(distance, depth * (1 - torch.exp(-width * (distance - length))) ** 2, label=kind)
    axes.set(xlabel="distance [Å]", ylabel="energy [eV]", ylim=(0, 8), title="Morse potentials found")
    axes.legend()
    figure.savefig(options.out / "pair_potential.png", dpi=120)
    return {"converged": float(solution.converged), "worst": float(((found - true).abs() / errors).max())}


if __name__ == "__main__":
    main()

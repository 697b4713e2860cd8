"""Families of pose graphs with known truth, in halves: rules are chosen on one half, claims are made on the other.

A graph is a shape (grid, city, ring, sphere, torus, line), a noise (mild to hopeless) and a start (odometry, spanning
tree, chordal). Its half comes from a hash of its name. Of the two noises that make solves long there are further draws;
their half comes from what is drawn, whatever the start.
"""

import hashlib
import itertools
from dataclasses import dataclass

import numpy as np
import torch

import mslsq
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.initialization import chordal, spanning_tree

NOISES = {"mild": (0.01, 0.005), "usual": (0.05, 0.02), "strong": (0.15, 0.08), "hopeless": (0.4, 0.3)}
"""Standard deviations of translation (m, with steps of a metre) and rotation (rad)."""
STARTS = ("odometry", "tree", "chordal")
LONG = ("strong", "hopeless")


@dataclass(frozen=True)
class Shape:
    truth: mslsq.SE2 | mslsq.SE3
    loops: np.ndarray
    """(loops, 2) pairs of poses that see each other, beside the odometry."""


def se2(x: np.ndarray, y: np.ndarray, theta: np.ndarray) -> mslsq.SE2:
    return mslsq.SE2.from_xyt(torch.from_numpy(np.stack([x, y, theta], -1)))


def se3(position: np.ndarray, ahead: np.ndarray, up: np.ndarray) -> mslsq.SE3:
    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.linalg.norm(v, axis=-1, keepdims=True)

    x = unit(ahead)
    y = unit(np.cross(up, x))
    matrix = np.stack([x, y, np.cross(x, y)], -1)
    return mslsq.SE3.from_parts(mslsq.SO3.from_matrix(torch.from_numpy(matrix)), torch.from_numpy(position))


def along(path: np.ndarray) -> np.ndarray:
    """The direction of travel at every point of a path."""
    return np.diff(path, axis=0, append=path[-1:] + (path[-1:] - path[-2:-1]))


def near(path: np.ndarray, radius: float, share: float, random: np.random.Generator) -> np.ndarray:
    """A share of the pairs that are near in space, not neighbours in time."""
    distance = np.linalg.norm(path[:, None] - path[None], axis=-1)
    i, j = np.nonzero(np.triu(distance <= radius, 2))
    kept = random.random(len(i)) < share
    return np.stack([i[kept], j[kept]], -1)


def grid(count: int, random: np.random.Generator) -> Shape:
    """A lawn mower's way over a square, neighbours in the next row seen."""
    side = max(int(np.sqrt(count)), 4)
    row, column = np.divmod(np.arange(side * side), side)
    x = np.where(row % 2, side - 1 - column, column).astype(float)
    path = np.stack([x, row.astype(float)], -1)
    d = along(path)
    return Shape(se2(path[:, 0], path[:, 1], np.arctan2(d[:, 1], d[:, 0])), near(path, 1.01, 0.7, random))


def city(count: int, random: np.random.Generator) -> Shape:
    """A random walk along streets, as in M3500."""
    heading = np.cumsum(random.choice([0, 0, 0, 0, 1, -1], count)) * (np.pi / 2)
    path = np.cumsum(np.stack([np.cos(heading), np.sin(heading)], -1), 0).round()
    return Shape(se2(path[:, 0], path[:, 1], heading), near(path, 1.2, 0.3, random))


def ring(count: int, random: np.random.Generator) -> Shape:
    """Odometry around a lake, and few loops."""
    angle = np.arange(count) * (2 * np.pi * 1.5 / count)
    radius = count / (3 * np.pi)
    path = radius * np.stack([np.cos(angle), np.sin(angle)], -1)
    return Shape(se2(path[:, 0], path[:, 1], angle + np.pi / 2), near(path, 1.5, 0.05, random))


def line(count: int, random: np.random.Generator) -> Shape:
    """A winding road in the plane with five loops."""
    turn = np.cumsum(random.normal(0, 0.15, count))
    path = np.cumsum(np.stack([np.cos(turn), np.sin(turn)], -1), 0)
    ends = random.integers(0, count, (5, 2))
    return Shape(se2(path[:, 0], path[:, 1], turn), np.sort(ends[np.abs(ends[:, 0] - ends[:, 1]) > 2], 1))


def sphere(count: int, random: np.random.Generator) -> Shape:
    """A spiral up a sphere."""
    lap = max(int(np.sqrt(2 * count)), 8)
    turn = np.arange(count) * (2 * np.pi / lap)
    height = np.linspace(-0.45 * np.pi, 0.45 * np.pi, count)
    out = np.stack([np.cos(height) * np.cos(turn), np.cos(height) * np.sin(turn), np.sin(height)], -1)
    own = np.arange(count - lap)
    return Shape(se3(lap / (2 * np.pi) * out, along(out), out), np.stack([own, own + lap], -1))


def torus(count: int, random: np.random.Generator) -> Shape:
    """Windings around a torus, the winding before seen."""
    lap = max(int(np.sqrt(count / 2)), 8)
    around = np.arange(count) * (2 * np.pi / count)
    turn = np.arange(count) * (2 * np.pi / lap)
    small, large = lap / (2 * np.pi), count / lap / 4
    radius = large + small * np.cos(turn)
    path = np.stack([radius * np.cos(around), radius * np.sin(around), small * np.sin(turn)], -1)
    out = np.stack([np.cos(turn) * np.cos(around), np.cos(turn) * np.sin(around), np.sin(turn)], -1)
    own = np.arange(count - lap)
    return Shape(se3(path, along(path), out), np.stack([own, own + lap], -1))


SHAPES = {"grid": grid, "city": city, "ring": ring, "line": line, "sphere": sphere, "torus": torus}
SIZES = (60, 400, 1500)


def names(half: str | None = None, draws: int = 0) -> list[str]:
    """All graphs, or those of the half "choose" or "claim"; and further draws of the long noises."""
    every = ["-".join(map(str, parts)) for parts in itertools.product(SHAPES, SIZES, NOISES, STARTS)]
    more = itertools.product(SHAPES, SIZES, LONG, STARTS, range(1, draws + 1))
    every += ["-".join(map(str, parts)) for parts in more]
    return [name for name in every if half is None or half_of(name) == half]


def half_of(name: str) -> str:
    hashed = name if name.count("-") == 3 else drawn(name)
    return ("choose", "claim")[hashlib.sha256(hashed.encode()).digest()[0] % 2]


def drawn(name: str) -> str:
    """What the random numbers of a graph depend on: all but the start."""
    shape, size, noise, _, *draw = name.split("-")
    return "-".join((shape, size, noise, *draw))


def graph(name: str) -> PoseGraph:
    """The graph of a name: shape-size-noise-start, or shape-size-noise-start-draw."""
    shape_name, size, noise, start = name.split("-")[:4]
    seed = int.from_bytes(hashlib.sha256(drawn(name).encode()).digest()[:4])
    random = np.random.default_rng(seed)
    shape = SHAPES[shape_name](int(size), random)
    truth, count = shape.truth, shape.truth.shape[0]
    odometry = np.stack([np.arange(count - 1), np.arange(1, count)], -1)
    edges = torch.from_numpy(np.concatenate([odometry, shape.loops]))
    first, second = edges[:, 0].contiguous(), edges[:, 1].contiguous()
    translation, rotation = NOISES[noise]
    space = isinstance(truth, mslsq.SE3)
    sigma = torch.tensor([translation] * (3 if space else 2) + [rotation] * (3 if space else 1), dtype=torch.float64)
    step = torch.from_numpy(random.standard_normal((len(edges), len(sigma)))) * sigma
    measured = truth[first].between(truth[second]).retract(step)  # type: ignore[arg-type]
    if start == "odometry":
        own = slice(0, count - 1)
        poses = spanning_tree(first[own], second[own], measured[own], count)
    elif start == "tree":
        poses = spanning_tree(first, second, measured, count)
    else:
        poses = chordal(first, second, measured, count)
    return PoseGraph(
        name=name,
        poses=poses,
        first=first,
        second=second,
        measured=measured,
        information=sigma.pow(-2).diag().expand(len(first), -1, -1).clone(),
        ids=torch.arange(count),
        fixed=torch.zeros(0, dtype=torch.int64),
    )

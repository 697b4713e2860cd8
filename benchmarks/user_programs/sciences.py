"""Models of the sciences and of engineering, as their users write them."""

import math

import torch

from user_programs.compared import F64, T, Y, case, vector

TIMES = torch.linspace(0.2, 4, 20, dtype=F64)


def kinetics(k, times):
    """A -> B -> C by the implicit midpoint rule."""
    matrix = torch.stack(
        [
            torch.stack([-k[0], torch.zeros_like(k[0]), torch.zeros_like(k[0])]),
            torch.stack([k[0], -k[1], torch.zeros_like(k[0])]),
            torch.stack([torch.zeros_like(k[0]), k[1], torch.zeros_like(k[0])]),
        ]
    )
    state = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    eye = torch.eye(3, dtype=F64)
    h = float(times[1] - times[0])
    out = []
    for _ in times:
        state = torch.linalg.solve(eye - h / 2 * matrix, (eye + h / 2 * matrix) @ state)
        out.append(state[1])
    return torch.stack(out)


@case(vector(0.8, 0.3), TIMES, kinetics(vector(1.1, 0.45), TIMES) + 0.01 * torch.sin(5 * TIMES))
def chemical_kinetics(k, t, y):
    return kinetics(k, t) - y


def epidemic(p, days):
    s, i = 1 - 0.01, 0.01 + 0 * p[0]
    out = []
    for _ in range(days):
        new, healed = p[0] * s * i, p[1] * i
        s, i = s - new, i + new - healed
        out.append(i)
    return torch.stack(out)


@case(vector(0.5, 0.2), epidemic(vector(0.6, 0.25), 25) * (1 + 0.03 * torch.cos(torch.arange(25.0, dtype=F64))))
def epidemiology_sir(p, cases):
    return (epidemic(p, len(cases)) - cases) * 10


KERNEL = torch.exp(-0.5 * torch.linspace(-2, 2, 9, dtype=F64) ** 2)
AXIS = torch.linspace(-3, 3, 40, dtype=F64)


def spectrum(p, x):
    lines = p[0] * p[2] ** 2 / ((x - p[1]) ** 2 + p[2] ** 2)
    kernel = KERNEL / KERNEL.sum()
    return torch.nn.functional.conv1d(lines[None, None], kernel[None, None], padding=4)[0, 0] + p[3]


@case(vector(1.0, 0.2, 0.4, 0.0), AXIS, spectrum(vector(1.3, 0.3, 0.5, 0.1), AXIS) + 0.01 * torch.sin(11 * AXIS))
def spectroscopy_convolution(p, x, y):
    return spectrum(p, x) - y


BOARD = torch.cartesian_prod(torch.arange(4.0, dtype=F64), torch.arange(3.0, dtype=F64))


def projected(p):
    """Focal length, centre, a radial distortion; rotation vector and translation of a board."""
    angle = torch.linalg.vector_norm(p[4:7]) + 1e-12
    axis = p[4:7] / angle
    zero = torch.zeros_like(angle)
    cross = torch.stack([zero, -axis[2], axis[1], axis[2], zero, -axis[0], -axis[1], axis[0], zero]).reshape(3, 3)
    rotation = torch.eye(3, dtype=p.dtype) + torch.sin(angle) * cross + (1 - torch.cos(angle)) * cross @ cross
    points = torch.cat([BOARD, torch.zeros(len(BOARD), 1, dtype=F64)], 1) @ rotation.T + p[7:]
    plane = points[:, :2] / points[:, 2:]
    radius = (plane**2).sum(1, keepdim=True)
    return p[0] * plane * (1 + p[3] * radius) + p[1:3]


CAMERA = vector(5.0, 0.4, 0.3, -0.1, 0.3, -0.2, 0.1, -1.0, -1.0, 6.0)


@case(CAMERA + 0.03, projected(CAMERA) + 0.003 * torch.sin(torch.arange(24.0, dtype=F64)).reshape(12, 2))
def camera_calibration(p, seen):
    return projected(p) - seen


FREQUENCIES = torch.logspace(0, 4, 20, dtype=F64)


def impedance(p, w):
    """R0 + (R1 || a constant-phase element)."""
    r0, r1, q, n = p.exp()
    return r0 + 1 / (1 / r1 + q * (1j * w) ** n)


@case(
    vector(0.1, 2.2, -6.8, -0.1),
    FREQUENCIES,
    impedance(vector(0.0, 2.3, -6.9, -0.15), FREQUENCIES) * (1 + 0.002 * torch.sin(FREQUENCIES)),
    grad=False,
)
def circuit_impedance(p, w, z):
    return (impedance(p, w) - z) / z.abs()


ANCHORS = torch.tensor([[0.0, 0, 20], [10, 0, 21], [0, 10, 19], [10, 10, 22], [5, 14, 20]], dtype=F64)


@case(
    vector(4.0, 4.0, 0.0, 0.0),
    ANCHORS,
    torch.linalg.vector_norm(ANCHORS - vector(3.0, 5.0, 1.0), dim=1) + 0.7 + 0.01 * torch.sin(vector(1, 2, 3, 4, 5)),
)
def gps_trilateration(p, satellites, ranges):
    return torch.cdist(p[None, :3], satellites)[0] + p[3] - ranges


VIEWS = {"left": torch.tensor([0.0, 0, 0], dtype=F64), "right": torch.tensor([1.0, 0, 0], dtype=F64)}
SCENE = torch.tensor([[0.2, 0.1, 4], [0.8, -0.3, 5], [-0.4, 0.5, 3]], dtype=F64)


@case((SCENE + 0.1).reshape(-1), {name: (SCENE - at)[:, :2] / SCENE[:, 2:] + 0.001 for name, at in VIEWS.items()})
def bundle_of_views(points, seen):
    points = points.reshape(3, 3)
    return {name: (points - VIEWS[name])[:, :2] / points[:, 2:] - seen[name] for name in seen}


YEARS = torch.tensor([0.5, 1, 2, 3, 5, 7, 10, 20, 30], dtype=F64)


def nelson_siegel(p, t):
    x = t / p[3]
    load = -torch.expm1(-x) / x
    return p[0] + p[1] * load + p[2] * (load - torch.exp(-x))


@case(vector(3.0, -1.0, 1.0, 2.0), YEARS, nelson_siegel(vector(4.0, -2.0, 1.5, 1.8), YEARS) + 0.02 * torch.cos(YEARS))
def finance_curve(p, t, rates):
    return nelson_siegel(p, t) - rates


@case(vector(0.25), vector(0.8, 0.9, 1.0, 1.1, 1.2), vector(0.251, 0.183, 0.127, 0.085, 0.055))
def black_scholes_volatility(s, strikes, prices):
    normal = torch.distributions.Normal(torch.zeros((), dtype=F64), torch.ones((), dtype=F64))
    d1 = (torch.log(1 / strikes) + 0.5 * s**2) / s
    return normal.cdf(d1) - strikes * normal.cdf(d1 - s) - prices


def radial_velocity(p, t):
    """Kepler's equation by ten steps of Newton."""
    mean = 2 * math.pi * t / p[1] + p[4]
    e = torch.sigmoid(p[2])
    anomaly = mean
    for _ in range(10):
        anomaly = anomaly - (anomaly - e * torch.sin(anomaly) - mean) / (1 - e * torch.cos(anomaly))
    true = 2 * torch.atan2((1 + e).sqrt() * torch.sin(anomaly / 2), (1 - e).sqrt() * torch.cos(anomaly / 2))
    return p[0] * (torch.cos(true + p[3]) + e * math.cos(0.3))


ORBIT = vector(1.0, 1.7, -1.0, 0.3, 0.2)


@case(ORBIT + 0.03, TIMES, radial_velocity(ORBIT, TIMES) + 0.01 * torch.sin(17 * TIMES))
def astronomy_orbit(p, t, v):
    return radial_velocity(p, t) - v


@case(torch.zeros(8, dtype=F64), vector(0.0, 0.0), vector(1.0, 0.0))
def optimal_control(u, start, goal):
    """A pendulum is steered to a goal: controls and the last state are paid for."""
    state = start
    for k in range(8):
        angle, speed = state[0], state[1]
        state = torch.stack([angle + 0.25 * speed, speed + 0.25 * (u[k] - torch.sin(angle))])
    return torch.cat([0.1 * u, 10 * (state - goal)])


@case(vector(0.5, 0.5, 0.2), T, Y)
def recurrent_filter(p, t, y):
    h = torch.zeros((), dtype=F64)
    out = []
    for x in t:
        h = torch.tanh(p[0] * h + p[1] * x)
        out.append(h)
    return torch.stack(out) + p[2] - y


@case(vector(0.2, 1.0, 0.3), T, Y)
def gaussian_process_draws(p, t, y):
    k = torch.sigmoid(p[0]) * torch.exp(-0.5 * (t[:, None] - t) ** 2 / p[1] ** 2) + (
        0.05 + torch.sigmoid(p[2])
    ) * torch.eye(20, dtype=F64)
    factor = torch.linalg.cholesky(k)
    whitened = torch.linalg.solve_triangular(factor, y[:, None], upper=False)[:, 0]
    return torch.cat([whitened, torch.sqrt(2 * torch.log(torch.diagonal(factor)) + 8)])


@case(vector(0.1, 1.0, 0.5), T, Y)
def heat_equation(p, t, y):
    """Twenty cells, implicit steps by a tridiagonal matrix."""
    laplace = torch.diag(torch.full((20,), -2.0)) + torch.diag(torch.ones(19), 1) + torch.diag(torch.ones(19), -1)
    step = torch.eye(20, dtype=F64) - p[0] * laplace.double()
    u = p[1] * torch.exp(-t)
    for _ in range(3):
        u = torch.linalg.solve(step, u)
    return u + p[2] - y


@case(vector(1.0, 0.5), T, Y)
def survival_weibull(p, t, y):
    return torch.exp(-((t / p[0].abs()) ** p[1])) * 2 - y


@case(vector(0.5, 0.5, 0.1), T, Y)
def pharmacology_two_doses(p, t, y):
    later = (t - 1.0).clamp(min=0)
    dose = torch.exp(-p[0] * t) + (t > 1.0) * torch.exp(-p[0] * later)
    return p[1] * dose + p[2] - y


@case(vector(0.3, 0.1, 0.2), torch.tensor([[0.0, 1], [1, 1], [2, 3], [3, 3], [4, 5.5]], dtype=F64))
def orthogonal_distance_line(p, points):
    normal = torch.stack([torch.cos(p[0]), torch.sin(p[0])])
    return torch.cat([points @ normal - p[1], p[2:] - 1])

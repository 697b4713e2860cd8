"""Models of further fields: crystals, satellites, lenses, waves, robots, materials, as their people write them."""

import math

import torch
import torch.nn.functional as F

from user_programs.cameras import rodrigues
from user_programs.compared import F64, case, vector

EYE3 = torch.eye(3, dtype=F64)
X = torch.linspace(-5, 5, 60, dtype=F64)
PLANES = torch.tensor(
    [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1], [2, 0, 0], [0, 2, 1]]
)
TURNS = torch.linspace(0, 0.9, 4, dtype=F64)
GRID = torch.linspace(-1, 1, 12, dtype=F64)
UP, ACROSS = torch.meshgrid(GRID, GRID, indexing="ij")
RADIUS2 = UP**2 + ACROSS**2
ZERNIKE = torch.stack([2 * RADIUS2 - 1, ACROSS**2 - UP**2, 2 * ACROSS * UP, (3 * RADIUS2 - 2) * ACROSS])
PUPIL = (RADIUS2 <= 1).double()
TRUE_CELL, NEAR_CELL = vector(5.1, 6.2, 7.3, 85.0, 95.0, 102.0), vector(5.0, 6.0, 7.5, 90.0, 90.0, 100.0)


@case(NEAR_CELL, PLANES, torch.zeros(9, dtype=F64), truth=TRUE_CELL)
def unit_cell_of_a_powder(cell, planes, angles):
    """Six numbers of a triclinic cell from diffraction angles, in degrees."""
    a, b, c, alpha, beta, gamma = cell
    alpha, beta, gamma = torch.deg2rad(alpha), torch.deg2rad(beta), torch.deg2rad(gamma)
    ab, ac, bc = a * b * gamma.cos(), a * c * beta.cos(), b * c * alpha.cos()
    metric = torch.stack([torch.stack([a * a, ab, ac]), torch.stack([ab, b * b, bc]), torch.stack([ac, bc, c * c])])
    h = planes.to(metric)
    spacing = torch.einsum("ni,ij,nj->n", h, torch.linalg.inv(metric), h).rsqrt()
    return torch.rad2deg(2 * torch.asin(1.5406 / (2 * spacing))) - angles


@case(vector(0.44, 0.16, 2.5, 2.5, 1.0), PLANES, torch.zeros(9, dtype=F64), truth=vector(0.45, 0.15, 2, 3, 1.3))
def structure_factors(p, planes, amplitudes):
    """Two atoms in a plane, the first of which says where the origin is: moduli of complex sums."""
    places = torch.stack([vector(0.1, 0.2), p[:2]])
    phase = torch.exp(2j * math.pi * (planes[:, :2].double() @ places.T))
    damped = vector(6, 7) * torch.exp(-p[2:4] * (planes.double() ** 2).sum(-1)[:, None] / 100)
    return p[4] * (damped * phase).sum(-1).abs() - amplitudes


@case(vector(1, 0, -0.5, -0.5, 0), X, torch.zeros(60, dtype=F64), truth=vector(2, 0.3, -0.7, -1.0, 0.1))
def voigt_by_humlicek(p, x, y):
    """Three rational functions of a complex number, chosen by `where`."""
    sigma, width = p[2].exp() * math.sqrt(2), p[3].exp()
    re = (width / sigma).expand_as(x)
    t = torch.complex(re, -(x - p[1]) / sigma)
    u, size = t * t, re + ((x - p[1]) / sigma).abs()
    far = t * 0.5641896 / (0.5 + u)
    middle = t * (1.410474 + u * 0.5641896) / (0.75 + u * (3 + u))
    above = 16.4955 + t * (20.20933 + t * (11.96482 + t * (3.778987 + t * 0.5642236)))
    near = above / (16.4955 + t * (38.82363 + t * (39.27121 + t * (21.69274 + t * (6.699398 + t)))))
    return p[0] * torch.where(size >= 15, far, torch.where(size >= 5.5, middle, near)).real + p[4] - y


@case(
    vector(0.01, 0.01, 0.01, 0.01),
    vector(-0.5, 0.3),
    torch.zeros(2, 12, 12, dtype=F64),
    truth=vector(0.05, 0.08, -0.04, 0.06),
)
def wavefront_by_zernike(c, defocus, images):
    """Phase retrieval: the point spread functions of two planes."""

    def image(more):
        wave = torch.tensordot(c, ZERNIKE, 1) + more * ZERNIKE[0]
        return torch.fft.fftshift(torch.fft.fft2(PUPIL * torch.exp(2j * math.pi * wave), norm="ortho")).abs().square()

    return torch.stack([image(more) for more in defocus]) - images


@case(vector(0, 0.1, 0.1, 0), vector(0.75, 0.2, -0.45))
def arm_with_limits(q, target):
    """Inverse kinematics; joints are kept in their limits by hinges."""
    turn, reach = EYE3, torch.zeros(3, dtype=F64)
    for angle, axis, length in zip(q, (2, 1, 1, 0), (0.4, 0.3, 0.2, 0.1), strict=True):
        turn = turn @ rodrigues(F.one_hot(torch.tensor(axis), 3).double() * angle)
        reach = reach + turn[:, 0] * length
    return torch.cat([10 * (reach - target), 2 * torch.relu(q - 0.6), 2 * torch.relu(-0.6 - q), 0.1 * q])


@case(
    vector(0.1, -0.2, 0.4, 0, 0, 0),
    torch.linspace(-1, 1, 12, dtype=F64).view(4, 3),
    torch.linspace(1, -0.5, 12, dtype=F64).view(4, 3),
)
def hand_eye(x, turns, moves):
    """A X = X B of rotations by their axes and of translations."""
    turned = rodrigues(x[:3])
    hand = torch.stack([rodrigues(turn) for turn in turns.unbind()])
    return torch.cat([turns @ turned - moves.flip(0), (hand - EYE3) @ x[3:] + moves * 0.1], -1)


@case(torch.full((5,), 2.2, dtype=F64), torch.zeros(5, dtype=F64), truth=vector(10, 8, 12, 9, 11).log())
def modes_by_eigh(logs, frequencies):
    """Stiffnesses of a chain of masses, tied to the wall by the same spring twice, from its frequencies."""
    k, mass = torch.cat([logs, logs[:1]]).exp(), vector(1, 1.2, 0.8, 1, 0.9).rsqrt()
    stiffness = torch.diag(k[:-1] + k[1:]) - torch.diag(k[1:-1], 1) - torch.diag(k[1:-1], -1)
    return torch.linalg.eigh(mass[:, None] * stiffness * mass)[0].sqrt() - frequencies


@case(
    vector(95, 1.5, 0.3, 0),
    torch.linspace(400, 800, 15, dtype=F64),
    torch.zeros(30, dtype=F64),
    truth=vector(100, 1.46, 0.35, 0.01),
)
def ellipsometry(p, wave, measured):
    """A film on silicon: Fresnel's complex coefficients at 70 degrees."""
    film = torch.complex(p[1] + p[2] * 1e4 / wave**2, -p[3] * 400 / wave)
    air, silicon = torch.ones_like(film), torch.full_like(film, 3.9 - 0.02j)
    sine = math.sin(math.radians(70))
    cosines = [torch.sqrt(1 - (sine / n) ** 2) for n in (air, film, silicon)]
    delay = torch.exp(-4j * math.pi * p[0] * film * cosines[1] / wave)

    def reflected(swap):
        def at(a, b, n, m):
            return (m * a - n * b) / (m * a + n * b) if swap else (n * a - m * b) / (n * a + m * b)

        outside, inside, below = cosines
        first, second = at(outside, inside, air, film), at(inside, below, film, silicon)
        return (first + second * delay) / (1 + first * second * delay)

    return torch.view_as_real(reflected(True) / reflected(False)).reshape(-1) - measured


@case(vector(1, 1, 0, 1, 0, 1, 0), torch.zeros(6, 2, dtype=F64), truth=vector(1.1, 0.9, 0.2, 1.0, -0.3, 0.8, 0.1))
def antenna_gains(p, visibilities):
    """Complex gains from pairs of reals; that of the first antenna is real."""
    gains, (i, j) = torch.view_as_complex(F.pad(p[1:], (2, 0)).view(4, 2)), torch.triu_indices(4, 4, 1)
    gains = gains + F.one_hot(torch.tensor(0), 4) * p[0]
    model = gains[i] * gains[j].conj() * torch.exp(1j * torch.arange(6))
    return torch.view_as_real(model) - visibilities


@case(vector(0.5, 8), torch.arange(-80, 40, 10, dtype=F64), torch.zeros(12, dtype=F64), truth=vector(1, 10))
def rate_of_a_channel(p, voltage, y):
    """Hodgkin and Huxley's u/(1 - e^-u), with 0/0 made safe in both branches."""
    u = (voltage + 40) / p[1]
    safe = torch.where(u.abs() < 1e-6, torch.ones_like(u), u)
    return p[0] * torch.where(u.abs() < 1e-6, 1 + u / 2, safe / (1 - torch.exp(-safe))) - y


@case(
    vector(1, 0, 1, 0, 0, 1, 0, 0, 0),
    torch.nn.functional.normalize(torch.sin(torch.arange(60, dtype=F64) ** 2).view(20, 3), dim=-1)
    * vector(1.1, 0.9, 1.2)
    + 0.2,
)
def magnetometer(p, field):
    """Soft and hard iron: a triangle filled by index, and an offset."""
    triangle = torch.zeros(3, 3, dtype=F64)
    rows, columns = torch.tril_indices(3, 3)
    triangle[rows, columns] = p[:6]
    return ((field - p[6:]) @ triangle).norm(dim=-1) - 1


@case(vector(0.4, -0.2), torch.linspace(-0.4, 0.4, 9, dtype=F64), vector(1.5))
def lens_by_tracing(curvature, heights, glass):
    """Rays through two spheres: intersections, Snell's law, and where they end."""
    place = torch.stack([heights, torch.full_like(heights, -1)], -1)
    ray = vector(0, 1).expand(len(heights), 2)
    for c, depth, ratio in ((curvature[0], 0.0, 1 / glass), (curvature[1], 0.2, glass)):
        radius = 1 / c
        offset = place - torch.stack([torch.zeros_like(radius), depth + radius])
        along = (offset * ray).sum(-1)
        length = -along - torch.sign(radius) * torch.sqrt(along**2 - (offset * offset).sum(-1) + radius**2)
        place = place + length[:, None] * ray
        normal = (offset + length[:, None] * ray) * c
        cosine = (normal * ray).sum(-1)
        bent = torch.sign(cosine) * torch.sqrt(1 - ratio**2 * (1 - cosine**2)) - ratio * cosine
        ray = ratio * ray + bent[:, None] * normal
    ends = place[:, 0] + (3 - place[:, 1]) / ray[:, 1] * ray[:, 0]
    return torch.cat([ends, 0.1 * (curvature - vector(0.3, -0.3))])


@case(
    vector(1, 1),
    (EYE3 + 0.2 * torch.sin(torch.arange(72, dtype=F64)).view(8, 3, 3)),
    torch.zeros(8, 3, 3, dtype=F64),
    truth=vector(1.5, 3),
)
def stress_of_rubber(p, deformations, stresses):
    """The gradient of an energy of determinants, mapped over points."""

    def energy(f):
        volume = torch.linalg.det(f)
        return p[0] / 2 * ((f * f).sum() * volume.pow(-2 / 3) - 3) + p[1] / 2 * (volume - 1) ** 2

    return torch.func.vmap(torch.func.grad(energy))(deformations) - stresses


@case(
    vector(0, 2),
    (EYE3 + 0.3 * torch.cos(torch.arange(72, dtype=F64)).view(8, 3, 3)),
    torch.zeros(8, dtype=F64),
    truth=vector(0.3, 2.5),
)
def energy_of_stretches(p, deformations, energies):
    """Ogden's, of singular values."""
    return p[0].exp() / p[1] * ((torch.linalg.svdvals(deformations) ** p[1]).sum(-1) - 3) - energies


@case(
    vector(0.25, 0.2, 0.2, -0.4, 0.2),
    torch.linspace(0.05, 3, 25, dtype=F64),
    torch.zeros(50, dtype=F64),
    truth=vector(0.2, 0.3, 0.1, -0.6, 0.3),
)
def filter_by_response(p, frequency, y):
    """A recursive filter by logarithms of magnitudes and wrapped phases."""
    z = torch.exp(-1j * frequency)
    h = (p[0] + z * (p[1] + z * p[2])) / (1 + z * (p[3] + z * p[4]))
    phase = torch.remainder(h.angle() - y[25:] + math.pi, 2 * math.pi) - math.pi
    return torch.cat([h.abs().log() - y[:25], phase])


@case(
    vector(0.05, 0, 0),
    torch.sin(torch.arange(24, dtype=F64) ** 2).view(12, 2),
    torch.sin(torch.arange(24, dtype=F64) ** 2).view(12, 2).flip(0) * 1.01,
)
def nearest_by_argmin(p, points, seen):
    cosine, sine = p[0].cos(), p[0].sin()
    moved = points @ torch.stack([torch.stack([cosine, sine]), torch.stack([-sine, cosine])]) + p[1:]
    return moved - seen[torch.cdist(moved, seen).argmin(-1)]


@case(
    torch.full((4, 3), 1.1, dtype=F64),
    vector(0.1, 0.3, 0.6, 1, 1.5, 2.5, 4),
    torch.zeros(4, 7, dtype=F64),
    truth=torch.linspace(0.8, 1.6, 12, dtype=F64).view(4, 3),
)
def inversion_recovery(p, times, signals):
    """Four voxels of magnitudes, whose sign is lost."""
    amplitude, t1, inversion = p.unbind(-1)
    return (amplitude[:, None] * (1 - (1 + inversion[:, None]) * torch.exp(-times / t1[:, None]))).abs() - signals


@case(vector(0.3, 0.3, 0.02, 0.1), torch.zeros(2, 6, 6, dtype=F64), truth=vector(0.4, 0.2, 0.05, 0.06))
def reaction_and_diffusion(p, seen):
    """Gray and Scott's, six steps with circular padding."""
    u, v = (
        1 - 0.2 * torch.sin(torch.arange(36.0, dtype=F64)).view(6, 6) ** 2,
        0.2 * torch.cos(torch.arange(36.0, dtype=F64)).view(6, 6) ** 2,
    )
    kernel = vector(0.05, 0.2, 0.05, 0.2, -1, 0.2, 0.05, 0.2, 0.05).view(1, 1, 3, 3)

    def spread(field):
        return F.conv2d(F.pad(field[None, None], (1, 1, 1, 1), mode="circular"), kernel)[0, 0]

    for _ in range(6):
        used = u * v * v
        u, v = u + p[0] * spread(u) - used + p[2] * (1 - u), v + p[1] * spread(v) + used - (p[3] + p[2]) * v
    return torch.stack([u, v]) - seen


@case(
    vector(0.2, 1, 0.1, 1),
    torch.linspace(0, 6, 25, dtype=F64),
    torch.zeros(2, 25, dtype=F64),
    truth=vector(0.3, 1.05, 0.2, 1.2),
)
def orbit_by_newton(p, t, seen):
    """Kepler's equation by eight steps."""
    mean = p[1] * t + p[2]
    e = mean + p[0] * mean.sin()
    for _ in range(8):
        e = e - (e - p[0] * e.sin() - mean) / (1 - p[0] * e.cos())
    return torch.stack([p[3] * (e.cos() - p[0]), p[3] * torch.sqrt(1 - p[0] ** 2) * e.sin()]) - seen


@case(
    vector(-1.5, 1.2, 1.5),
    torch.sin(torch.arange(30, dtype=F64) ** 2),
    torch.zeros(30, dtype=F64),
    truth=vector(-2, 1.5, 2),
)
def delay_and_low_pass(p, signal, y):
    """A filter in frequencies, back by `irfft`."""
    f = torch.fft.rfftfreq(30, dtype=F64)
    response = torch.exp(-2j * math.pi * f * p[1]) / (1 + 1j * f / p[0].exp())
    return torch.fft.irfft(torch.fft.rfft(signal) * response, n=30) * p[2] - y


@case(
    vector(1, 1, 0.1),
    torch.outer(torch.linspace(0, 1, 6, dtype=F64) ** 2, torch.linspace(1, 2, 5, dtype=F64)),
    torch.zeros(15, dtype=F64),
    truth=vector(1.2, 1.1, 0.3),
)
def table_of_two_axes(p, table, y):
    """Bilinear, with the cell by `long`."""
    a = (p[0] * torch.linspace(0.3, 2.7, 15, dtype=F64) + p[2]).clamp(0, 4.999)
    b = (p[1] * torch.linspace(0.2, 2.5, 15, dtype=F64)).clamp(0, 3.999)
    i, j = a.long(), b.long()
    lower = table[i, j] * (1 - b + j) + table[i, j + 1] * (b - j)
    upper = table[i + 1, j] * (1 - b + j) + table[i + 1, j + 1] * (b - j)
    return lower * (1 - a + i) + upper * (a - i) - y


@case(
    vector(0.3, 0.8, 0.3),
    torch.cos(torch.arange(60, dtype=F64) ** 2).view(4, 5, 3),
    torch.zeros(4, 5, dtype=F64),
    truth=vector(0.5, 1, 0.2),
)
def mapped_twice(p, x, y):
    """`vmap` of `vmap` over axes that are not the first."""
    return (
        torch.func.vmap(torch.func.vmap(lambda q, x: (q * x).sum().sin(), (None, 0)), (None, 1), out_dims=1)(p, x) - y
    )

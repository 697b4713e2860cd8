"""Cameras, scans and shapes: calibrations, fits of primitives, registrations with their own correspondences."""

import torch

from user_programs.compared import F64, case, vector

K = torch.arange(30, dtype=F64)
CLOUD = torch.stack([torch.sin(1.7 * K), torch.cos(2.3 * K), 0.3 * torch.sin(0.9 * K + 1)], 1)
RING = torch.stack([1 + 2 * torch.cos(0.4 * K), -0.5 + 2 * torch.sin(0.4 * K)], 1)
BOARD = torch.cartesian_prod(torch.arange(5, dtype=F64), torch.arange(4, dtype=F64)) * 0.1 - 0.2


def skew(w):
    zero = torch.zeros_like(w[0])
    return torch.stack([zero, -w[2], w[1], w[2], zero, -w[0], -w[1], w[0], zero]).reshape(3, 3)


def rodrigues(w):
    angle = torch.sqrt((w * w).sum() + 1e-24)
    k = skew(w / angle)
    return torch.eye(3, dtype=w.dtype) + torch.sin(angle) * k + (1 - torch.cos(angle)) * k @ k


@case(
    vector(400, 400, 160, 120, 0, 0, 0, 0, 0.02, -0.01, 0.05, 0.01, 0, 1.2),
    BOARD,
    torch.zeros(40, dtype=F64),
    truth=vector(420, 415, 158, 122, -0.2, 0.05, 0.001, -0.001, 0.3, -0.2, 0.1, 0.02, 0.01, 1.0),
)
def calibration_of_brown(p, board, pixels):
    """Radial and tangential distortion."""
    points = torch.nn.functional.pad(board, (0, 1)) @ rodrigues(p[8:11]).T + p[11:14]
    x, y = points[:, 0] / points[:, 2], points[:, 1] / points[:, 2]
    r2 = x * x + y * y
    radial = 1 + p[4] * r2 + p[5] * r2**2
    u = x * radial + 2 * p[6] * x * y + p[7] * (r2 + 2 * x * x)
    v = y * radial + p[6] * (r2 + 2 * y * y) + 2 * p[7] * x * y
    return torch.cat([p[0] * u + p[2], p[1] * v + p[3]]) - pixels


@case(
    vector(300, 0.1, 0.2, -0.1, 0.3, 0.1, 0.05, 1.5),
    BOARD,
    torch.zeros(20, 2, dtype=F64),
    truth=vector(320, 0.05, 0.25, -0.12, 0.2, 0.15, 0.02, 1.1),
)
def fisheye_of_kannala(p, board, pixels):
    points = torch.einsum("ij,nj->ni", rodrigues(p[2:5]), torch.nn.functional.pad(board, (0, 1))) + p[5:]
    radius = torch.linalg.vector_norm(points[:, :2], dim=1, keepdim=True)
    theta = torch.atan2(radius, points[:, 2:])
    return p[0] * (theta + p[1] * theta**3) * points[:, :2] / radius - pixels


def two_views(p):
    points, depth = p[6:].reshape(8, 3), torch.tensor([0.0, 0.0, 4.0], dtype=p.dtype)
    views = torch.stack([points + depth, points @ rodrigues(p[:3]).T + p[3:6] + depth])
    return views[..., :2] / views[..., 2:]


SEEN = two_views(torch.cat([vector(0.1, -0.2, 0.05, 0.3, 0.1, -0.1), CLOUD[:8].reshape(-1)]))
SEEN = SEEN + 0.002 * torch.sin(9 * torch.arange(32, dtype=F64)).view(2, 8, 2)


@case(
    torch.cat([vector(0, 0, 0, 0.1, 0, 0), CLOUD[:8].reshape(-1) * 1.02]),
    SEEN,
)
def adjustment_of_two_views(p, seen):
    """Two cameras and eight points in one flat vector, the scale held by a soft length."""
    r = two_views(p) - seen
    return torch.cat([r.reshape(-1), (p[3:6].norm() - 0.33).reshape(1), 0.01 * (p[6:] - CLOUD[:8].reshape(-1))])


@case(
    torch.eye(3, dtype=F64).reshape(-1)[:8] * 0.9,
    RING,
    torch.zeros(30, 2, dtype=F64),
    truth=vector(1.1, 0.1, 0.5, -0.1, 0.9, 0.2, 0.02, 0.01),
)
def homography_of_points(p, points, seen):
    H = torch.cat([p, p.new_ones(1)]).view(3, 3)
    h = torch.cat([points, torch.ones_like(points[:, :1])], -1) @ H.mT
    return h[:, :2] / h[:, 2:] - seen


@case(torch.full((3,), 0.5, dtype=F64), RING + 0.05 * torch.sin(7 * RING))
def circle_by_norm(p, points):
    return (points - p[:2]).norm(dim=-1) - p[2]


@case(vector(0.5, -0.2, 1.5, 1.5, 0.1), torch.stack([1 + 3 * torch.cos(0.4 * K), 2 * torch.sin(0.4 * K + 0.3)], 1))
def ellipse_by_sampson(p, points):
    """First-order distance: algebraic over the norm of its gradient, by autograd inside."""
    c, s = torch.cos(p[4]), torch.sin(p[4])

    def algebraic(x):
        u, v = c * (x[0] - p[0]) + s * (x[1] - p[1]), c * (x[1] - p[1]) - s * (x[0] - p[0])
        return (u / p[2]) ** 2 + (v / p[3]) ** 2 - 1

    slope, value = torch.func.vmap(torch.func.grad_and_value(algebraic))(points)
    return value / slope.norm(dim=1)


ANGLES = torch.linspace(0, 6, 30, dtype=F64)


@case(
    torch.cat([vector(0.8, 0.1, 2.5, 1.5), ANGLES + 0.1]),
    torch.stack([1 + 3 * torch.cos(ANGLES), 2 * torch.sin(ANGLES)], 1) + 0.02 * torch.sin(5 * RING),
)
def ellipse_by_own_angles(p, points):
    """Orthogonal distances with one angle per point among the unknowns."""
    curve = torch.stack([p[0] + p[2] * torch.cos(p[4:]), p[1] + p[3] * torch.sin(p[4:])], -1)
    return curve - points


@case(vector(0.1, 0.2, 1.0), CLOUD @ torch.diag(vector(1, 1, 0.05)) + vector(0, 0, 2))
def plane_by_unit_normal(p, cloud):
    n = torch.stack([p[0], p[1], torch.ones_like(p[0])])
    return cloud @ (n / n.norm()) - p[2]


@case(vector(0.1, 0.1, 0.1, 0.8), torch.nn.functional.normalize(CLOUD, dim=1) * 1.5 + vector(0.3, 0.2, -0.1))
def sphere_by_squares(p, cloud):
    return ((cloud - p[:3]).pow(2).sum(1) - p[3].square()) / (2 * p[3])


@case(
    vector(0.1, 0.1, 0.1, 0.1, 0.9),
    torch.stack([torch.cos(K), torch.sin(K), 0.1 * K], 1) @ rodrigues(vector(0.2, 0.1, 0)).T,
)
def cylinder_by_cross(p, cloud):
    axis = torch.nn.functional.normalize(torch.stack([p[0], p[1], torch.ones_like(p[0])]), dim=0)
    origin = torch.cat([p[2:4], p.new_zeros(1)])
    return torch.linalg.vector_norm(torch.linalg.cross(cloud - origin, axis.expand_as(cloud)), dim=1) - p[4]


@case(torch.zeros(6, dtype=F64), CLOUD[:, [0, 1, 2]], CLOUD @ rodrigues(vector(0.05, 0.02, -0.04)).T + 0.02)
def icp_point_to_plane(p, source, target):
    """Nearest neighbours and normals of three neighbours within the residual."""
    moved = source @ rodrigues(p[:3]).T + p[3:]
    near = torch.cdist(moved.detach(), target).topk(3, largest=False).indices
    a, b, c = target[near].unbind(1)
    normal = torch.nn.functional.normalize(torch.linalg.cross(b - a, c - a), dim=1)
    return ((moved - a) * normal).sum(1)


@case(torch.zeros(3, dtype=F64), CLOUD[:, :2], CLOUD[:, :2] + vector(0.06, -0.04))
def icp_with_soft_assignment(p, source, target):
    c, s = torch.cos(p[2]), torch.sin(p[2])
    moved = torch.stack([c * source[:, 0] - s * source[:, 1], s * source[:, 0] + c * source[:, 1]], 1) + p[:2]
    weight = torch.softmax(-40 * torch.cdist(moved, target).square(), 1)
    return moved - weight @ target


@case(vector(0.1, 0.1, 0.1, 0, 0, 0), CLOUD, CLOUD @ rodrigues(vector(0.5, -0.3, 0.8)).T + vector(0.3, 0.1, 0.2))
def rotation_by_matrix_exp(p, source, target):
    return (source @ torch.linalg.matrix_exp(skew(p[:3])).T + p[3:] - target).flatten()


@case(vector(0, 0, 0.1, 1), CLOUD, CLOUD @ rodrigues(vector(0.5, -0.3, 0.8)).T)
def rotation_by_own_quaternion(p, source, target):
    q = p / p.norm()
    v, w = q[:3].expand_as(source), q[3]
    t = 2 * torch.cross(v, source, dim=1)
    return torch.cat([(source + w * t + torch.cross(v, t, dim=1) - target).flatten(), (p.norm() - 1).view(1)])


@case(vector(0.1, 0, 0, 0.9, 0.1, 0), CLOUD, CLOUD @ rodrigues(vector(0.5, -0.3, 0.8)).T)
def rotation_by_gram_schmidt(p, source, target):
    """The six numbers of a network's rotation."""
    a = p[:3] / p[:3].norm()
    b = p[3:] - (a @ p[3:]) * a
    b = b / b.norm()
    R = torch.stack([a, b, torch.linalg.cross(a, b)], 1)
    return torch.cat(
        [(source @ R.T - target).reshape(-1), p[:3].norm()[None] - 1, p[3:].norm()[None] - 1, p[:3] @ p[3:, None]]
    )


@case(vector(0.9, 0.1, 0, 0, 1.1, 0.1, 0.1, 0, 0.9), CLOUD, CLOUD @ rodrigues(vector(0.5, -0.3, 0.8)).T)
def rotation_by_svd(p, source, target):
    """Procrustes of a matrix of unknowns."""
    U, _, V = torch.linalg.svd(p.reshape(3, 3))
    sign = torch.cat([p.new_ones(2), torch.linalg.det(U @ V)[None]])
    return torch.cat(
        [(source @ (U * sign @ V).T - target).reshape(-1), 0.1 * (p - torch.eye(3, dtype=p.dtype).reshape(-1))]
    )


@case(torch.zeros(2, dtype=F64), torch.sin(torch.arange(144, dtype=F64) / 9).view(12, 12))
def shift_by_gather(p, image):
    """Bilinear by hand: floor, gather, weights."""
    y, x = torch.meshgrid(torch.arange(2, 9, dtype=p.dtype), torch.arange(2, 9, dtype=p.dtype), indexing="ij")
    y, x = y + p[0], x + p[1]
    y0, x0 = y.floor().clamp(0, 10), x.floor().clamp(0, 10)
    fy, fx = y - y0, x - x0
    at = (y0 * 12 + x0).long().reshape(-1)
    flat = image.reshape(-1)
    a, b, c, d = (torch.gather(flat, 0, at + k).view(7, 7) for k in (0, 1, 12, 13))
    seen = (1 - fy) * ((1 - fx) * a + fx * b) + fy * ((1 - fx) * c + fx * d)
    truth = torch.sin((12 * (torch.arange(2, 9, dtype=p.dtype) + 0.3)[:, None] + torch.arange(2, 9) + 0.2) / 9)
    return (seen - truth).reshape(-1)


@case(torch.full((4,), 0.1, dtype=F64), CLOUD[:, :2])
def triangulation_of_rays(p, directions):
    """Where many rays meet, and one offset: distances to lines by projection matrices."""
    d = directions / directions.norm(dim=1, keepdim=True)
    projector = torch.eye(2, dtype=d.dtype) - d[:, :, None] * d[:, None, :]
    return (projector @ (p[:2] - 0.2 * directions.flip(1))[..., None]).squeeze(-1).flatten() + (
        p[2:].sum() + p[2:]
    ).repeat(30) * 0.1

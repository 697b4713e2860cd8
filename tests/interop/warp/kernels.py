"""Kernels of the tests: Warp reads their source from a file. The first half is right, the second is what Warp's adjoint
is wrong for."""

import warp as wp

wp.config.quiet = True


@wp.kernel
def distance(
    pose: wp.array(dtype=wp.transform),
    beacon: wp.array(dtype=wp.vec3),
    measured: wp.array(dtype=float),
    residual: wp.array(dtype=float),
):
    i = wp.tid()
    residual[i] = wp.length(wp.transform_get_translation(pose[i]) - beacon[i]) - measured[i]


@wp.kernel
def polar(x: wp.array(dtype=wp.vec2d), scale: wp.array(dtype=wp.float64), y: wp.array(dtype=wp.vec2d)):
    i = wp.tid()
    y[i] = wp.vec2d(x[i][0] * x[i][0] * scale[i], x[i][1] * wp.sin(x[i][0]))


@wp.kernel
def polar_adjoint(
    x: wp.array(dtype=wp.vec2d),
    scale: wp.array(dtype=wp.float64),
    y: wp.array(dtype=wp.vec2d),
    adj_x: wp.array(dtype=wp.vec2d),
    adj_scale: wp.array(dtype=wp.float64),
    adj_y: wp.array(dtype=wp.vec2d),
):
    i = wp.tid()
    g = adj_y[i]
    a = wp.float64(2.0) * x[i][0] * scale[i] * g[0] + x[i][1] * wp.cos(x[i][0]) * g[1]
    adj_x[i] = wp.vec2d(a, wp.sin(x[i][0]) * g[1])
    adj_scale[i] = x[i][0] * x[i][0] * g[0]


@wp.kernel
def polar_tangent(
    x: wp.array(dtype=wp.vec2d),
    scale: wp.array(dtype=wp.float64),
    y: wp.array(dtype=wp.vec2d),
    tan_x: wp.array(dtype=wp.vec2d),
    tan_scale: wp.array(dtype=wp.float64),
    tan_y: wp.array(dtype=wp.vec2d),
):
    i = wp.tid()
    t = tan_x[i]
    a = wp.float64(2.0) * x[i][0] * scale[i] * t[0] + x[i][0] * x[i][0] * tan_scale[i]
    tan_y[i] = wp.vec2d(a, x[i][1] * wp.cos(x[i][0]) * t[0] + wp.sin(x[i][0]) * t[1])


@wp.kernel
def moments(x: wp.array2d(dtype=float), n: int, y: wp.array2d(dtype=float)):
    i = wp.tid()
    a = float(0.0)
    b = float(0.0)
    for k in range(n):
        a += x[i, k]
        b += x[i, k] * x[i, k]
    y[i, 0] = a
    y[i, 1] = b


@wp.kernel
def sampled(at: wp.array(dtype=float), table: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    low = int(wp.floor(at[i]))
    part = at[i] - float(low)
    y[i] = table[low] * (1.0 - part) + table[low + 1] * part


@wp.func
def weight_of(x: float):
    return x * x


@wp.kernel
def components(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i].x = 2.0 * x[i]
    y[i].y = 3.0 * x[i]
    y[i].z = 4.0 * weight_of(x[i])


@wp.kernel
def filled_once(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    v = wp.vec3()
    v.x = x[i] * x[i]
    if x[i] > 1.0:
        v.y = v.x * v.x
    else:
        v.y = 3.0 * x[i]
    v[2] = 1.0
    y[i] = v


@wp.kernel
def accumulated(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = wp.vec3(x[i], x[i], x[i])
    y[i] += wp.vec3(x[i] * x[i], 0.0, 0.0)


@wp.kernel
def powers(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    a = x[i]
    for _k in range(3):
        a = a * x[i]
    y[i] = wp.vec3(a, a, a)


@wp.kernel
def element_added(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    v = wp.vec3(x[i], x[i], x[i])
    v[0] += x[i] * x[i]
    v[0] -= 3.0 * x[i]
    y[i] = v


RIGHT = (components, filled_once, accumulated, powers, element_added)


@wp.kernel
def overwritten(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    v = wp.vec3(x[i], x[i], x[i])
    v.x = 5.0 * x[i]
    y[i] = v


@wp.kernel
def component_added(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    v = wp.vec3()
    v.x += x[i] * x[i]
    v.x += x[i]
    y[i] = v


@wp.kernel
def read_and_written(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = wp.vec3(x[i], x[i], x[i])
    y[i] = y[i] * 2.0


@wp.kernel
def multiplied(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = wp.vec3(x[i], x[i], x[i])
    y[i] *= x[i]


@wp.kernel
def written_twice(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = wp.vec3(x[i], x[i], x[i])
    y[i] = wp.vec3(x[i] * x[i], x[i], x[i])


@wp.kernel
def written_in_a_loop(x: wp.array(dtype=float), n: int, y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    for k in range(n):
        y[i] = wp.vec3(x[i] * float(k), 0.0, 0.0)


@wp.kernel
def multiplied_in_a_loop(x: wp.array(dtype=float), n: int, y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    a = x[i]
    for _k in range(n):
        a = a * x[i]
    y[i] = wp.vec3(a, a, a)


@wp.func
def overwriting(x: float):
    v = wp.vec3(x, x, x)
    v[1] = 7.0 * x
    return v


@wp.kernel
def in_a_function(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = overwriting(x[i])


@wp.func
def halved(v: wp.vec3):
    v[1] = v[1] * 0.5
    return v


@wp.kernel
def in_an_argument(x: wp.array(dtype=float), y: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    y[i] = halved(wp.vec3(x[i], x[i], x[i]))


WRONG = {
    overwritten: "a component of 'v' is overwritten",
    component_added: "a component of 'v' is changed in place",
    read_and_written: "'y' is written in terms of what it holds",
    multiplied: "'y' is written in terms of what it holds",
    written_twice: "an element of 'y' is written more than once",
    written_in_a_loop: "an element of 'y' is written more than once",
    multiplied_in_a_loop: "a loop of unknown length changes 'a'",
    in_an_argument: "a component of 'v' is overwritten",
    in_a_function: "line 4 of overwriting: 'v[1] = 7.0 * x'",
}


@wp.kernel(enable_backward=False)
def without_backward(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.kernel
def undocumented(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    # A wrong derivative that no pattern shows: the adjoint of the function is the user's own.
    y[i] = scaled(x[i])


@wp.func
def scaled(x: float):
    return 3.0 * x


@wp.func_grad(scaled)
def adj_scaled(x: float, adj_ret: float):
    wp.adjoint[x] += 2.0 * adj_ret


@wp.kernel
def sampled_image(
    shift: wp.array(dtype=wp.vec2),
    at: wp.array(dtype=wp.vec2),
    seen: wp.array(dtype=float),
    image: wp.array2d(dtype=float),
    residual: wp.array(dtype=float),
):
    i = wp.tid()
    p = at[i] + shift[i]
    x = int(wp.floor(p[0]))
    y = int(wp.floor(p[1]))
    u = p[0] - float(x)
    v = p[1] - float(y)
    top = image[y, x] * (1.0 - u) + image[y, x + 1] * u
    bottom = image[y + 1, x] * (1.0 - u) + image[y + 1, x + 1] * u
    residual[i] = top * (1.0 - v) + bottom * v - seen[i]


@wp.kernel
def first_of_all(x: wp.array(dtype=float), residual: wp.array(dtype=float)):
    """Wrong on purpose: all lanes add to the first one's place."""
    i = wp.tid()
    wp.atomic_add(residual, 0, x[i] * x[i])

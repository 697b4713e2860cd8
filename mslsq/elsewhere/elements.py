"""What elements of groups have in other libraries; an element that is asked for it says our word."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

K = TypeVar("K")

NAMES_OF_ELEMENTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("Exp", "Expmap", "ExpMap", "exp_map", "expmap", "from_tangent", "from_rotvec", "rotvec2SO3"),
        ".exp(tangent), of the class; the translation comes first in a tangent",
    ),
    **dict.fromkeys(
        ("Log", "Logmap", "LogMap", "log_map", "logmap", "to_tangent", "as_rotvec", "vee", "vec"),
        ".log(); the translation comes first in a tangent",
    ),
    **dict.fromkeys(
        ("Retract", "Retr", "retr", "rplus", "plus", "oplus", "boxplus", "add_"),
        ".retract(tangent), which is self @ exp(tangent)",
    ),
    **dict.fromkeys(
        ("lplus",), "perturbations are on the right: .retract(tangent); on the left type(x).exp(tangent) @ x"
    ),
    **dict.fromkeys(
        ("localCoordinates", "LocalCoordinates", "local_coordinates", "rminus", "minus", "ominus", "boxminus"),
        ".local(other), which is (self.inverse() @ other).log()",
    ),
    **dict.fromkeys(("lminus",), "perturbations are on the right: .local(other); on the left (b @ a.inverse()).log()"),
    **dict.fromkeys(("inv", "Inv", "Inverse", "inverted", "transpose"), ".inverse()"),
    **dict.fromkeys(("Compose", "multiply", "dot", "times", "mul"), "a @ b, or .compose(other)"),
    **dict.fromkeys(("Between", "relative", "relative_to"), ".between(other)"),
    **dict.fromkeys(
        (
            *("transformFrom", "transform_from", "transform_point", "transform_points", "transform", "apply"),
            *("Act", "Act3", "Act4", "rotate", "action"),
        ),
        ".act(points)",
    ),
    **dict.fromkeys(("transformTo", "transform_to", "unrotate", "untransform"), ".inverse().act(points)"),
    **dict.fromkeys(
        ("AdjointMap", "adjointMap", "Adj", "adj", "Ad", "Adjoint", "AdjT", "adjoint_map"),
        ".adjoint(), a matrix",
    ),
    **dict.fromkeys(("rjac", "Jr", "ExpmapDerivative", "dexp", "rightJacobian"), ".right_jacobian(tangent)"),
    **dict.fromkeys(("rjacinv", "Jrinv", "Jinvp", "LogmapDerivative"), ".right_jacobian_inverse(tangent)"),
    **dict.fromkeys(("ljac", "Jl", "leftJacobian"), ".left_jacobian(tangent)"),
    **dict.fromkeys(("ljacinv", "Jlinv"), ".left_jacobian_inverse(tangent)"),
    **dict.fromkeys(("Identity", "identity_", "eye"), ".identity(...), of the class"),
    **dict.fromkeys(("Random", "rand", "randn", "sample_uniform"), ".random(...), of the class"),
    **dict.fromkeys(
        (
            *("to_matrix", "as_matrix", "to_homogenous_matrix", "to_rotation_matrix", "matrix4x4", "matrix3x4"),
            *("rotationMatrix", "rotation_matrix", "homogeneous", "asMatrix"),
        ),
        ".matrix()",
    ),
    **dict.fromkeys(("Matrix", "fromMatrix", "from_rotation_matrix"), ".from_matrix(matrix), of the class"),
    **dict.fromkeys(
        (
            *("tensor", "data", "coeffs", "parameters", "params", "to_storage", "wxyz", "wxyz_xyz", "quaternion"),
            *("toQuaternion", "to_quaternion", "unit_quaternion", "as_quat", "quat", "to_x_y_z_quaternion"),
        ),
        "the tensor .storage, in which quaternions are (qx, qy, qz, qw)",
    ),
    **dict.fromkeys(("from_storage", "from_quat", "from_quaternion", "wrap"), "the class itself takes the storage"),
    **dict.fromkeys(
        ("from_euler", "from_rpy", "euler2SO3", "RzRyRx", "Ypr", "Rx", "Ry", "Rz", "rot_x", "rot_y", "rot_z"),
        ".exp(angle * axis), of the class, and products of such rotations by @: yaw @ pitch @ roll",
    ),
    **dict.fromkeys(
        ("from_rotation_and_translation", "from_rt", "Create"), ".from_parts(rotation, translation), of the class"
    ),
    **dict.fromkeys(("normalize", "normalize_", "unit", "projected"), ".normalized()"),
    **dict.fromkeys(("dof", "dim", "Dim", "DoF", "tangent_dimension", "lshape"), ".tangent_dim; .shape of the batch"),
    **dict.fromkeys(("trans", "xyz", "translationVector"), ".translation"),
    **dict.fromkeys(("rot", "so3", "so2", "rotationPart"), ".rotation"),
    **dict.fromkeys(("x", "y", "z"), ".translation"),
    **dict.fromkeys(("theta", "angle"), ".log(); of SE2 .xyt()"),
    **dict.fromkeys(("equals", "is_close", "isApprox"), ".local(other), which is near zero for equal elements"),
}
"""What elements of groups have in other libraries; what it is of `SE3` and the others."""


class _Word:
    """A name that elements have in another library: who reads it of a group or an element is told ours.

    Not a `__getattr__`, which classes would need a metaclass for, and which costs every other attribute something.
    """

    def __init__(self, name: str):
        self.name = name

    def __get__(self, element: Any, kind: type) -> Any:
        words = NAMES_OF_ELEMENTS[self.name]
        ours = re.match(r"\.(\w+)", words)
        exists = ours is None or hasattr(kind, ours[1])  # similarities have no Jacobians, rotations no translation
        raise AttributeError(f"{kind.__name__} has no {self.name!r}.{f' Here: {words}.' if exists else ''}")


def group_knowing_words(kind: type[K]) -> type[K]:
    """A group whose elements say our word for another library's; a subclass may well have one of these names."""
    for name in NAMES_OF_ELEMENTS:
        setattr(kind, name, _Word(name))
    return kind

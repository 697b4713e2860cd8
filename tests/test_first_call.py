"""The first call of a process imports little: not Dynamo, which takes a second and is needed by `torch.compile` alone,
not sympy (0.15 s), and not PyTorch's formulas for operators that have no derivative in forward mode (0.2 s).
"""

import os
import subprocess
import sys

import pytest
import torch

START = """
import sys
import torch, mslsq
torch.set_default_dtype(torch.float64)
x = torch.linspace(0, 2, 16)
y = 2.5 * torch.exp(-1.3 * x) + 0.01 * torch.cos(7 * x) - 1

def residual(p, shift=1):
    return p[0] * 3 * torch.exp(-p[1] * x) / 2 - shift - y

def report(*tensors):
    print(*[value.hex() for tensor in tensors for value in tensor.detach().reshape(-1).tolist()])
"""

CALLS = {
    "forward mode": """
report(mslsq.least_squares(residual, torch.tensor([1.0, 0.5])).value)
""",
    "a curve fit": """
report(mslsq.curve_fit(lambda p, x: p[0] * 3 * torch.exp(-p[1] * x) - 1, x, y, torch.tensor([1.0, 0.5])).value)
""",
    "reverse mode": """
class Relative(mslsq.CostFunction):
    def residual(self, a: mslsq.SE2, b: mslsq.SE2, measured: mslsq.SE2):
        return (measured.inverse() @ (a.inverse() @ b)).log()

first, second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
pose = mslsq.Variable("pose", mslsq.SE2, count=3)
measured = mslsq.SE2.from_xyt(torch.tensor([[1.0, 0.1, 2.0], [1.1, 0.0, 2.1], [0.9, 0.0, 2.2]]))
problem = mslsq.Problem(Relative(pose[first], pose[second], measured=measured), pose.fixed([0]))
start = {"pose": mslsq.SE2.from_xyt(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 2.0], [0.5, 1.0, 4.0]]))}
report(mslsq.solve(problem, start).value["pose"].storage)
""",
    "the backward pass of a layer": """
class Match(mslsq.CostFunction):
    def residual(self, motion: mslsq.SE2, point, partner):
        return motion.act(point) - partner

point = torch.stack([torch.cos(x), torch.sin(3 * x)], -1)
motion = mslsq.Variable("motion", mslsq.SE2)
problem = mslsq.Problem(Match(motion, point=point, partner=point, weight=1.0, loss=mslsq.Huber(1.0)))
layer = mslsq.LeastSquaresLayer(problem)
partner = (mslsq.SE2.from_xyt(torch.tensor([0.3, -0.2, 0.5])).act(point) + 0.01 * point**2).requires_grad_()
solution = layer({"motion": mslsq.SE2.identity()}, {"match": {"partner": partner}})
solution.value["motion"].storage.square().sum().backward()
report(solution.value["motion"].storage, partner.grad)
""",
    "the gradient of a fit": """
observed = y.clone().requires_grad_()
decay = lambda p, y: p[0] * 3 * torch.exp(-p[1] * x) - 1 - y
fit = mslsq.least_squares(decay, torch.tensor([1.0, 0.5]), args=(observed,))
fit.value.sum().backward()
report(fit.value, observed.grad)
""",
}


def printed_by(code: str) -> list[str]:
    """The lines that a new process prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


RELEASE = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])


@pytest.mark.sampled(2)
@pytest.mark.skipif(RELEASE > (2, 15), reason="a later PyTorch may import Dynamo elsewhere: slower, not wrong")
@pytest.mark.parametrize("name", CALLS)
def test_the_first_call_does_not_import_dynamo(name):
    *_, loaded = printed_by(CALLS[name] + "print('torch._dynamo' in sys.modules)")
    assert loaded == "False", f"torch {torch.__version__} imports Dynamo in the first call: {name}"


SPARED = "sympy", "torch._decomp.decompositions_for_jvp"
WITH_SYMPY = {"the backward pass of a layer"}  # reverse mode of forward mode asks for the shapes of strided tensors


@pytest.mark.sampled(2)
@pytest.mark.skipif(RELEASE != (2, 13), reason="another PyTorch may import them elsewhere: slower, not wrong")
@pytest.mark.parametrize("name", [name for name in CALLS if name not in WITH_SYMPY])
def test_the_first_call_imports_neither_sympy_nor_formulas_that_it_does_not_need(name):
    *_, loaded = printed_by(CALLS[name] + f"print([name for name in {SPARED} if name in sys.modules])")
    assert loaded == "[]", f"imported in the first call: {name}"


@pytest.mark.slow
def test_operators_that_need_a_formula_in_forward_mode_have_it_in_the_first_call():
    code = """
from mslsq import private
assert "torch._decomp.decompositions_for_jvp" not in sys.modules
matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
report(private.jacfwd(lambda p: torch.trace(matrix * p)[None])(torch.tensor([2.0])))
report(private.jvp(torch.nn.functional.logsigmoid, (torch.tensor([0.0]),), (torch.tensor([3.0]),))[1])
report(torch.func.jvp(torch.trace, (matrix,), (matrix,))[1])
"""
    assert [float.fromhex(line) for line in printed_by(code)] == [5.0, 1.5, 5.0]


@pytest.mark.slow
def test_shapes_without_sympy_are_those_of_pytorch():
    code = """
import itertools
from mslsq.private.forward_mode import _shape_without_sympy
shapes, dtypes = [(), (3,), (2, 1, 3), (4, 1), (1, 4, 3)], [torch.float32, torch.float64, torch.complex64, torch.int64]
kinds = list(itertools.product(shapes, dtypes))
pairs = [
    tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in pair)
    for pair in itertools.product(kinds, kinds)
]
found = [_shape_without_sympy(*pair) for pair in pairs]
assert "sympy" not in sys.modules
compared = 0
for one, pair in zip(found, pairs):
    for operator in ("add", "sub", "mul", "true_divide"):
        expected = getattr(torch._refs, operator)(*pair)
        if one is not None:
            assert (one.shape, one.stride(), one.dtype) == (expected.shape, expected.stride(), expected.dtype)
            compared += 1
print(compared)
"""
    assert int(printed_by(code)[0]) == 4 * 25 * 15  # all but those of two integers


@pytest.mark.slow
def test_answers_are_those_of_a_process_that_has_imported_everything_to_the_bit():
    everything = "".join(CALLS.values())
    found = printed_by(everything)
    assert len(found) == len(CALLS)
    imports = "".join(f"import {name}\n" for name in ("torch._dynamo", *SPARED))
    assert found == printed_by(imports + everything)


@pytest.mark.slow
def test_answers_are_the_same_where_warnings_are_errors():
    """What PyTorch imports for its first derivative in forward mode warns: the solve went on in reverse mode, and a
    derivative of it failed."""
    everything = "".join(CALLS.values())
    assert printed_by("import warnings\nwarnings.simplefilter('error')\n" + everything) == printed_by(everything)


@pytest.mark.slow
def test_torch_compile_works_after_a_first_call():
    """Through functions that ran before Dynamo was there, and with a solve inside."""
    code = """
@torch.compile(backend="eager")
def compiled(p):
    tangent = torch.func.jvp(lambda q: 3 * q - 1, (p,), (torch.ones_like(p),))[1]
    return tangent.sum() * torch.sin(p)
report(compiled(torch.tensor([1.0, 0.5])), 6 * torch.sin(torch.tensor([1.0, 0.5])))

meta = torch.ones(3, device="meta") * torch.ones(2, 1, device="meta") + 1
print("torch._dynamo" in sys.modules, tuple(meta.shape))

@torch.compile(backend="eager")
def solved(shift):
    return mslsq.least_squares(residual, torch.tensor([1.0, 0.5]), args=(shift,)).value * 2
shift = torch.tensor(1.0)
report(solved(shift))
report(2 * mslsq.least_squares(residual, torch.tensor([1.0, 0.5]), args=(shift,)).value)
"""
    first, shapes, inside, outside = printed_by(CALLS["forward mode"] + code)[1:]
    values = first.split()
    assert values[:2] == values[2:]
    assert shapes == "True (2, 3)"
    assert inside == outside


@pytest.mark.slow
def test_compiling_a_solve_works_after_a_first_call():
    """`compile=True` calls Inductor."""
    code = """
solver = mslsq.LevenbergMarquardt(compile=True)
report(mslsq.least_squares(residual, torch.tensor([1.0, 0.5]), solver=solver).value)
"""
    plain, compiled = (
        torch.tensor([float.fromhex(value) for value in line.split()], dtype=torch.float64)
        for line in printed_by(CALLS["forward mode"] + code)
    )
    assert torch.allclose(plain, compiled, rtol=1e-8, atol=0)


@pytest.mark.slow
def test_residuals_compiled_by_torch_are_solved_in_a_fresh_process():
    """Dynamo, which `torch.compile` imports, looked into what stands for it before: an AssertionError."""
    code = """
import functools
def decay(p, rate=1.3):
    return 3 * p[0] * torch.exp(-rate * p[1] * x) - y
for rate in (1.3, 2.0):
    own = functools.partial(decay, rate=rate)
    compiled = torch.compile(lambda p, rate=rate: decay(p, rate), backend="eager")
    for function in (own, compiled):
        report(mslsq.least_squares(function, torch.tensor([1.0, 0.5])).value)
"""
    plain, compiled, plain_again, compiled_again = printed_by(code)
    assert plain == compiled
    assert plain_again == compiled_again

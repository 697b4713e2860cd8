"""Problems that are made again for every call: one answers another where they differ in nothing but numbers, and only
there. Every way in which two problems can differ is solved beside one that is known."""

import functools
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import mslsq
from mslsq.front import alike_problems
from mslsq.front.alike_problems import ALIKE, content_of
from mslsq.linearize.plan_cache import SHARED
from tests.front.test_repeated_problem import PYTHON, SOLVER, answers, nothing_known  # noqa: F401
from tests.front.test_short_loop import COUNT, F64, same_solutions

FIRST, SECOND = torch.arange(COUNT), (torch.arange(COUNT) + 1) % COUNT


@pytest.fixture(scope="module", autouse=True)
def no_plans_of_other_tests():
    """What these tests have recorded serves them all."""
    SHARED.clear()
    ALIKE.clear()


class Own(mslsq.CostFunction):
    """A relative pose as a user writes it."""

    stiffness = 1.0

    def residual(self, a, b, measured):
        return self.stiffness * (measured.inverse() @ (a.inverse() @ b)).log()


def same_name():
    """Another class of the name, a new one in every call."""
    return type("Own", (mslsq.CostFunction,), {"residual": lambda self, a, b, measured: (a.inverse() @ b).log()})


class Between(mslsq.Between):
    """A subclass that has the name of its base."""

    def residual(self, a, b, measured):
        return 2 * super().residual(a, b, measured)


def poses(seed, count=COUNT):
    generator = torch.Generator().manual_seed(seed)
    angle = torch.arange(count, dtype=F64) * (2 * torch.pi / COUNT)
    truth = mslsq.SE2.from_xyt(torch.stack((4 * torch.cos(angle), 4 * torch.sin(angle), angle), -1))
    return truth, generator


def measured(seed=0, first=FIRST, second=SECOND, dtype=F64):
    truth, generator = poses(seed)
    noise = 0.05 * torch.randn(len(first), 3, generator=generator, dtype=F64)
    exact = mslsq.SE2(truth.storage[first]).inverse() @ mslsq.SE2(truth.storage[second])
    return mslsq.SE2(exact.retract(noise).storage.to(dtype))


def start(seed=0, dtype=F64):
    truth, generator = poses(seed)
    return {
        "pose": mslsq.SE2(truth.retract(0.1 * torch.randn(COUNT, 3, generator=generator, dtype=F64)).storage.to(dtype))
    }


def matrices(scale=1.0, dtype=F64):
    return mslsq.SqrtInformation(scale * torch.eye(3, dtype=dtype).repeat(COUNT, 1, 1))


def graph(kind=mslsq.Between, seed=0, first=FIRST, second=SECOND, fixed=(0,), data=None, held=None, **options):
    """A ring of poses; by default weighted, robust, its first pose held."""
    pose = mslsq.Variable("pose", mslsq.SE2, count=COUNT)
    options = {"weight": matrices(), "loss": mslsq.Huber(0.1), "name": "between", **options}
    data = measured(seed, first, second) if data is None else data
    between = kind(pose[first.clone()], pose[second.clone()], measured=data, **options)
    held = () if held is None else held(pose)
    return mslsq.Problem(between, pose.fixed(torch.tensor(fixed)), *held)


def prior(pose, place=3, scale=2.0):
    return mslsq.Prior(
        pose[[place]], target=mslsq.SE2.identity(1, dtype=F64), weight=mslsq.Scale(torch.tensor(scale, dtype=F64))
    )


def strided(x):
    return type(x)(torch.stack([x.storage] * 2, -1)[..., 0])


def written_in_instance(kind):
    problem = graph(kind)
    for closed_form in ("jacobians", "residual_and_jacobians", "broadcasts", "curvature"):
        setattr(problem["between"], closed_form, None)
    problem["between"].residual = lambda a, b, measured: 2 * kind.residual(problem["between"], a, b, measured)
    return problem


def one_tensor_twice():
    same = torch.tensor(2.0, dtype=F64)
    return lambda pose: [
        mslsq.Prior(pose[[place]], target=mslsq.SE2.identity(1, dtype=F64), weight=mslsq.Scale(same), name=f"p{place}")
        for place in (3, 4)
    ]


NUMBERS = {
    "the same": lambda kind: graph(kind),
    "data": lambda kind: graph(kind, seed=5),
    "weight": lambda kind: graph(kind, weight=matrices(3.0)),
    "parameter of the loss": lambda kind: graph(kind, loss=mslsq.Huber(0.01)),
    "index from elsewhere": lambda kind: graph(kind, first=FIRST.to(torch.int32), second=SECOND - COUNT),
}
"""Problems that differ from `graph(kind)` in numbers alone."""

STRUCTURE = {
    "index permuted": lambda kind: graph(kind, first=FIRST.flip(0), second=SECOND.flip(0)),
    "one end elsewhere": lambda kind: graph(kind, second=(FIRST + 2) % COUNT),
    "ends exchanged": lambda kind: graph(kind, first=SECOND, second=FIRST),
    "fewer blocks": lambda kind: graph(kind, first=FIRST[:-1], second=SECOND[:-1], weight=None),
    "another pose held": lambda kind: graph(kind, fixed=(4,)),
    "more poses held": lambda kind: graph(kind, fixed=(0, 5)),
    "a rotation held": lambda kind: graph(kind, held=lambda pose: [pose.fixed([3], components="rotation")]),
    "another rotation held": lambda kind: graph(kind, held=lambda pose: [pose.fixed([4], components="rotation")]),
    "another loss": lambda kind: graph(kind, loss=mslsq.Cauchy(0.1)),
    "no loss": lambda kind: graph(kind, loss=None),
    "loss per block": lambda kind: graph(kind, loss=mslsq.Huber(torch.linspace(0.01, 0.1, COUNT, dtype=F64))),
    "another kind of weight": lambda kind: graph(kind, weight=mslsq.Diagonal(torch.tensor([1.0, 2.0, 3.0], dtype=F64))),
    "weight shared": lambda kind: graph(kind, weight=mslsq.SqrtInformation(2 * torch.eye(3, dtype=F64))),
    "no weight": lambda kind: graph(kind, weight=None),
    "data shared": lambda kind: graph(kind, data=mslsq.Shared(mslsq.SE2(measured().storage[0]))),
    "data of another layout": lambda kind: graph(kind, data=strided(measured())),
    "another name": lambda kind: graph(kind, name="odometry"),
    "another cost as well": lambda kind: graph(kind, held=lambda pose: [prior(pose)]),
    "another cost elsewhere": lambda kind: graph(kind, held=lambda pose: [prior(pose, 6)]),
    "one tensor in two places": lambda kind: graph(kind, held=one_tensor_twice()),
    "a subclass": lambda kind: graph(Between if kind is mslsq.Between else type("Own", (Own,), {"stiffness": 3.0})),
    "another class of the name": lambda kind: graph(same_name()),
    "written in the instance": written_in_instance,
}
"""... and in more."""


def right(problem, values=None):
    """Of a problem of which nothing is known, step by step."""
    with nothing_known():
        return mslsq.solve(problem, start() if values is None else values, solver=PYTHON)


def solved(problem, values=None, solver=SOLVER):
    return mslsq.solve(problem, start() if values is None else values, solver=solver)


OFTEN = {*NUMBERS, "index permuted", "another loss", "another class of the name"}
"""Of a user's own costs, which are recorded for seconds, the cases that every run of the suite tries."""
CASES = [
    pytest.param(kind, case, id=f"{case}-{name}", marks=pytest.mark.slow if is_slow else ())
    for case in (*NUMBERS, *STRUCTURE)
    for kind, name, is_slow in ((mslsq.Between, "library", False), (Own, "own", case not in OFTEN))
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_problems_that_are_made_again_are_answered_as_they_are(answers, kind, case):  # noqa: F811
    make = {**NUMBERS, **STRUCTURE}[case]
    expected = right(make(kind))
    same_solutions(solved(graph(kind)), of_base(kind))
    recorded = set(SHARED._plans)
    found = solved(make(kind))
    assert answers[-1] is (case in NUMBERS)
    if case in NUMBERS:
        assert set(SHARED._plans) == recorded
    same_solutions(found, expected)
    same_solutions(solved(make(kind)), expected)
    same_solutions(solved(graph(kind)), of_base(kind))


@functools.cache
def of_base(kind):
    """The solution of `graph(kind)`."""
    return right(graph(kind))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [mslsq.Between, Own], ids=["library", "own"])
def test_an_index_that_is_written_to_later_changes_no_other_problem(kind):
    """Neither what was recorded of the first problem nor what is known of others holds the index of a user."""
    index = FIRST.clone()
    pose = mslsq.Variable("pose", mslsq.SE2, count=COUNT)
    references = pose[index]
    references.index.copy_(FIRST)
    first = mslsq.Problem(
        kind(references, pose[SECOND], measured=measured(), weight=matrices(), loss=mslsq.Huber(0.1), name="between"),
        pose.fixed(torch.tensor([0])),
    )
    for _ in range(2):
        same_solutions(solved(first), of_base(kind))
    references.index[2] = 7
    moved = FIRST.clone()
    moved[2] = 7
    expected = right(graph(kind, first=moved, data=measured()))
    same_solutions(solved(graph(kind)), of_base(kind))
    same_solutions(solved(first), expected)
    same_solutions(solved(graph(kind, first=moved, data=measured())), expected)
    same_solutions(solved(graph(kind)), of_base(kind))


def test_options_modes_and_types_of_the_start_are_other_calls(answers):  # noqa: F811
    for _ in range(2):
        solved(graph())
    assert answers[-1]
    few = mslsq.LevenbergMarquardt(max_steps=1, trace="always", linear_solver=SOLVER.linear_solver)
    assert int(solved(graph(), solver=few).num_steps) == 1 and not answers[-1]
    damped = mslsq.LevenbergMarquardt(initial_damping=1.0, trace="always", linear_solver=SOLVER.linear_solver)
    assert float(solved(graph(), solver=damped).history.damping[0]) == 1.0 and not answers[-1]
    assert (
        isinstance(solved(graph(), {"pose": start()["pose"].storage}).value["pose"], torch.Tensor) and not answers[-1]
    )
    single = graph(
        data=measured(dtype=torch.float32),
        weight=matrices(dtype=torch.float32),
        loss=mslsq.Huber(torch.tensor(0.1, dtype=torch.float32)),
    )
    found = solved(single, start(dtype=torch.float32))
    assert found.value["pose"].storage.dtype == torch.float32 and not answers[-1]
    with pytest.raises(mslsq.ProblemError, match="float32"):
        solved(graph(), start(dtype=torch.float32))
    batch, other = torch.stack([start()["pose"].storage, start(seed=2)["pose"].storage]), graph(seed=3)
    ends = torch.func.vmap(lambda x: solved(other, {"pose": mslsq.SE2(x)}).value["pose"].storage)(batch)
    expected = right(other, start(seed=2)).value["pose"].storage
    torch.testing.assert_close(ends[1], expected, rtol=1e-9, atol=1e-10)
    found = solved(graph())
    assert answers[-1]
    same_solutions(found, of_base(mslsq.Between))


def test_constraints_and_bounds_are_other_problems(answers):  # noqa: F811
    p = mslsq.Variable("p", mslsq.Euclidean(30))

    def made(wrap=lambda cost: cost, **bounds):
        p = mslsq.Variable("p", mslsq.Euclidean(30), **bounds)
        weak = mslsq.Prior(p, target=torch.zeros(1, 30, dtype=F64), weight=0.5, name="weak")
        return mslsq.Problem(weak, wrap(mslsq.Prior(p, target=torch.linspace(0, 1, 30, dtype=F64)[None])))

    values = {p.name: torch.full((30,), 0.25, dtype=F64)}
    target = torch.linspace(0, 1, 30, dtype=F64)
    for k in range(3):
        torch.testing.assert_close(solved(made(), values).value["p"], target / 1.25)
        assert answers[-1] is (k > 0)
    torch.testing.assert_close(solved(made(mslsq.Equality), values).value["p"], target)
    torch.testing.assert_close(solved(made(upper=0.5), values).value["p"], (target / 1.25).clamp(max=0.5))
    assert answers[-2:] == [False, False]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [mslsq.Between, Own], ids=["library", "own"])
def test_derivatives_are_those_of_the_new_problem(kind):
    for _ in range(2):
        solved(graph(kind))

    def gradient(data, solve):
        leaf = data.storage.clone().requires_grad_()
        problem = graph(kind, data=mslsq.SE2(leaf))
        (found,) = torch.autograd.grad(solve(problem).value["pose"].storage.sum(), leaf)
        return found

    for seed in (0, 4):
        expected = gradient(measured(seed), right)
        torch.testing.assert_close(gradient(measured(seed), solved), expected, rtol=1e-6, atol=1e-9)


FACTOR = 1.0


def written_again(factor, held, network):
    """A cost class that is written again for every call: one code, other closures, globals, modules."""

    @mslsq.cost
    def between(a, b, measured):
        return factor * FACTOR * network(held * (measured.inverse() @ (a.inverse() @ b)).log())

    return between


def linear(scale):
    network = nn.Linear(3, 3, bias=False, dtype=F64).requires_grad_(False)
    with torch.no_grad():
        network.weight.copy_(scale * torch.eye(3, dtype=F64))
    return network


@pytest.mark.slow
def test_what_the_code_of_a_user_reads_is_that_of_the_new_problem(monkeypatch):
    base = {"factor": 1.0, "held": torch.ones(3, dtype=F64), "network": linear(1.0)}
    cases = [
        ({}, 1.0),
        ({"factor": 2.0}, 1.0),
        ({"held": torch.tensor([1.0, 2.0, 3.0], dtype=F64)}, 1.0),
        ({"held": torch.tensor(3.0, dtype=F64)}, 1.0),
        ({"network": linear(2.0)}, 1.0),
        ({"network": nn.Tanh()}, 1.0),
        ({"factor": 1}, 1.0),
        ({}, 3.0),
    ]

    def made(changed):
        return graph(written_again(**{**base, **changed}))

    for changed, factor in [*cases, *cases[:3]]:
        monkeypatch.setattr(__import__(__name__, fromlist=["FACTOR"]), "FACTOR", factor)
        values = start(seed=1)
        same_solutions(solved(made(changed), values), right(made(changed), values))


def test_a_class_that_is_changed_is_noticed():
    for _ in range(2):
        solved(graph(Own))
    Own.stiffness = 2.0
    try:
        expected = right(graph(Own))
        same_solutions(solved(graph(Own)), expected)
        same_solutions(solved(graph(Own)), expected)
    finally:
        Own.stiffness = 1.0
    same_solutions(solved(graph(Own)), right(graph(Own)))


class Hidden(mslsq.CostFunction):
    """Reads what no key can hold."""

    def residual(self, a, b, measured):
        return float(HIDDEN()) * (measured.inverse() @ (a.inverse() @ b)).log()


class Opaque:
    """A callable whose answer is nowhere to be seen."""

    __slots__ = ("__weakref__",)

    def __call__(self):
        return memoryview(b"%d" % CELL[0]).tobytes()


CELL = [1]
HIDDEN = Opaque()


@pytest.mark.slow
def test_a_residual_that_reads_what_no_key_holds_is_compared_with_its_python():
    for stiffness in (1, 1, 2, 1, 3, 3):
        CELL[0] = stiffness
        same_solutions(solved(graph(Hidden)), right(graph(Hidden)))


def test_nothing_of_a_problem_is_kept_alive():
    problem, values = graph(), start()
    data = weakref.ref(problem["between"].measured)
    solved(problem, values)
    solved(graph(), values)
    problem_alive = weakref.ref(problem)
    del problem
    gc.collect()
    assert problem_alive() is None and data() is None


def test_few_are_kept():
    for seed in range(alike_problems.SIZE + 5):
        second = (FIRST + 1 + seed % 7) % COUNT
        pose = mslsq.Variable(f"pose_{seed}", mslsq.SE2, count=COUNT)
        problem = mslsq.Problem(mslsq.Between(pose[FIRST], pose[second], measured=measured()), pose.fixed([0]))
        content = content_of(problem)
        call = alike_problems.Call(problem, {f"pose_{seed}": start()["pose"]}, SOLVER, None)
        if seed == 0:
            solved(graph())
            known = next(iter(ALIKE._known.values()))[0]
        assert content is not None
        ALIKE.put(content, call, known.answering, known.costs, [[]])
    assert len(ALIKE) == alike_problems.SIZE


class Mine(mslsq.SE2):
    """A group of a user, whose code may change."""

    def log(self):
        return 2 * super().log()


def test_what_is_not_the_librarys_own_is_told_apart():
    assert content_of(graph(data=Mine(measured().storage))) is None
    pose = mslsq.Variable("pose", Mine, count=COUNT)
    assert content_of(mslsq.Problem(mslsq.Difference(pose[FIRST], pose[SECOND]))) is None

    class Loss(mslsq.Huber):
        pass

    class Weighted(mslsq.Diagonal):
        pass

    assert content_of(graph(loss=Loss(0.1))) is None
    assert content_of(graph(weight=Weighted(torch.ones(3, dtype=F64)))) is None


def test_indices_that_cannot_be_compared_are_of_one_problem():
    count = 5000
    p = mslsq.Variable("p", mslsq.Euclidean(1), count=count)
    problem = mslsq.Problem(mslsq.Prior(p[torch.arange(count)], target=torch.zeros(count, 1, dtype=F64)))
    assert content_of(problem) is None
    plain, written = content_of(graph()), content_of(written_in_instance(mslsq.Between))
    assert plain is not None and written is not None and plain.key != written.key


def test_threads_share_what_is_known():
    expected, failed = {seed: right(graph(seed=seed)) for seed in range(4)}, []
    solved(graph())

    def work(seed):
        try:
            for _ in range(5):
                same_solutions(solved(graph(seed=seed)), expected[seed])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed

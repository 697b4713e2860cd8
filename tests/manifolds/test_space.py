"""The engine's view of manifolds: storage and tangents of classes, Euclidean spaces, products, a user's own."""

import pytest
import torch
from torch.func import jacfwd, vmap

from mslsq.manifolds import SE3, SO3, Euclidean, Manifold, ManifoldError, UnitVector, space_of, space_of_value

KINDS = {
    "SE3": SE3,
    "Euclidean": Euclidean(3),
    "UnitVector": UnitVector,
    "product": {"R": SO3, "t": Euclidean(3)},
    "nested": {"pose": {"R": SO3, "t": Euclidean(2)}, "n": UnitVector},
    "flat": {"a": Euclidean(1), "b": Euclidean(2)},
}


class Positive(Manifold):
    """A user's manifold: numbers above zero, moved by factors."""

    storage_dim = 1
    tangent_dim = 1

    def retract(self, delta):
        return type(self)(self.storage * delta.exp())

    def local(self, other):
        return (other.storage / self.storage).log()

    @classmethod
    def identity(cls, *batch_shape, dtype=None, device=None):
        return cls(torch.ones(*batch_shape, 1, dtype=dtype, device=device))


KINDS["user's"] = Positive


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_spaces_of_every_kind_keep_the_contract(kind):
    space = space_of(kind)
    generator = torch.Generator().manual_seed(0)
    storage = space.random(4, generator=generator, dtype=torch.float64)
    other = space.random(4, generator=generator, dtype=torch.float64)
    assert storage.shape == (4, space.storage_dim)
    value = space.wrap(storage)
    torch.testing.assert_close(space.unwrap(value), storage, rtol=0, atol=0)
    torch.testing.assert_close(space.unwrap(storage), storage, rtol=0, atol=0)
    assert space_of_value(value) == space
    delta = space.local(storage, other)
    assert delta.shape == (4, space.tangent_dim)
    assert space.local(storage, space.retract(storage, delta)).sub(delta).abs().max() <= 1e-12
    torch.testing.assert_close(space.retract(storage, torch.zeros_like(delta)), storage, rtol=0, atol=1e-15)

    # under transforms
    def move(s, d):
        return space.local(s, space.retract(s, d))

    jacobian = vmap(jacfwd(move, 1))(storage, torch.zeros_like(delta))
    eye = torch.eye(space.tangent_dim, dtype=torch.float64).expand(4, -1, -1)
    torch.testing.assert_close(jacobian, eye, rtol=0, atol=1e-13)
    assert vmap(space.unwrap)(vmap(space.wrap)(storage)).shape == storage.shape


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_jacobians_of_local_are_those_of_central_differences(kind):
    space, step = space_of(kind), 1e-5
    generator = torch.Generator().manual_seed(0)
    start, end = (space.random(generator=generator, dtype=torch.float64) for _ in range(2))
    if isinstance(space.wrap(end), UnitVector):
        end = space.retract(start, 0.3 * torch.ones(space.tangent_dim, dtype=torch.float64))
    deltas = step * torch.eye(space.tangent_dim, dtype=torch.float64)
    at_start = [space.local(space.retract(start, d), end) - space.local(space.retract(start, -d), end) for d in deltas]
    at_end = [space.local(start, space.retract(end, d)) - space.local(start, space.retract(end, -d)) for d in deltas]
    for found, differences in ((space.jacobian_at_start, at_start), (space.jacobian_at_end, at_end)):
        expected = torch.stack(differences, -1) / (2 * step)
        torch.testing.assert_close(found(start, end), expected, rtol=0, atol=1e-8 * (1 + float(expected.abs().max())))


def test_what_spaces_say_of_their_steps_and_formulas():
    said = {
        name: (space_of(kind).has_closed_form, space_of(kind).retracts_by_exponential) for name, kind in KINDS.items()
    }
    assert said == {
        "SE3": (True, True),
        "Euclidean": (True, True),
        "UnitVector": (False, False),
        "product": (False, True),
        "nested": (False, False),
        "flat": (False, True),
        "user's": (False, False),
    }


def test_spaces_are_equal_by_kind():
    assert space_of(Euclidean(3)) == space_of(Euclidean(3))
    assert hash(space_of({"R": SO3})) == hash(space_of({"R": SO3}))
    assert space_of(SO3) == space_of(SO3)
    different = {space_of(k) for k in (SO3, SE3, Euclidean(3), Euclidean(4), {"a": SO3}, {"b": SO3}, Positive)}
    assert len(different) == 7
    assert space_of(space_of(SO3)) == space_of(SO3)
    assert space_of(KINDS["product"]).name == "{R: SO3, t: Euclidean(3)}"
    assert space_of(UnitVector.of_dim(4)) != space_of(UnitVector)


def test_which_spaces_are_euclidean():
    assert space_of(Euclidean(2)).is_euclidean
    assert space_of(KINDS["flat"]).is_euclidean
    assert not space_of(KINDS["product"]).is_euclidean
    assert not space_of(SO3).is_euclidean


def test_products_concatenate_in_the_order_of_the_dict():
    space = space_of({"t": Euclidean(2), "R": SO3})
    storage = torch.arange(6.0)
    value = space.wrap(storage)
    assert list(value) == ["t", "R"]
    assert torch.equal(value["t"], storage[:2])
    assert isinstance(value["R"], SO3)
    assert torch.equal(value["R"].storage, storage[2:])
    # given in another order, and with batches that broadcast
    again = space.unwrap({"R": value["R"], "t": torch.zeros(5, 2)})
    assert again.shape == (5, 6)


def test_a_users_manifold_is_a_pytree_as_soon_as_it_is_defined():
    x = Positive(torch.tensor([[2.0], [3.0]]))
    assert isinstance(vmap(lambda e: e)(x), Positive)
    moved = vmap(lambda e, d: e.retract(d))(x, torch.ones(2, 1))
    torch.testing.assert_close(moved.storage, x.storage * torch.e)
    assert (Positive.random(3).storage > 0).all()

    class Unfinished(Manifold):
        storage_dim = 2
        tangent_dim = 1

    with pytest.raises(NotImplementedError, match=r"Unfinished does not define retract\(delta\)"):
        Unfinished(torch.zeros(2)).retract(torch.zeros(1))
    with pytest.raises(NotImplementedError, match="start of your own"):
        Unfinished.identity()
    with pytest.raises(TypeError, match="storage_dim must be an int"):
        type("Wrong", (Manifold,), {"storage_dim": "3"})


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: space_of(Euclidean), ManifoldError, "Euclidean(3)"),
        (lambda: space_of(SO3.identity()), ManifoldError, "SO3, the class"),
        (lambda: space_of(3), ManifoldError, "3 (int)"),
        (lambda: space_of({}), ManifoldError, "empty"),
        (lambda: space_of(Manifold), ManifoldError, "storage_dim"),
        (lambda: space_of_value(1.0), ManifoldError, "float"),
        (lambda: space_of_value(torch.tensor(1.0)), ManifoldError, "Euclidean(1)"),
        (lambda: space_of(SO3).unwrap(SE3.identity()), ManifoldError, "expected SO3 or its storage (..., 4), got SE3"),
        (lambda: space_of(SO3).unwrap(torch.zeros(3)), ManifoldError, "(..., 4), got (3,)"),
        (lambda: space_of(Euclidean(2)).unwrap(SO3.identity()), ManifoldError, "Euclidean(2)"),
        (lambda: space_of({"R": SO3}).unwrap({"Q": SO3.identity()}), ManifoldError, "['R'], got ['Q']"),
        (lambda: space_of({"R": SO3}).unwrap(1.0), ManifoldError, "float"),
        (lambda: Euclidean(0), ValueError, "dim >= 1, got 0"),
        (lambda: Euclidean(2.0), TypeError, "2.0 (float)"),
    ],
)
def test_errors_say_what_was_given_and_what_to_write(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)

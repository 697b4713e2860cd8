"""Element sparsity from the graph: never less than the dense Jacobian shows, and no more where that can be known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mslsq.linearize.compressed import TooDenseError, dependence_of
from mslsq.linearize.compressed import sets as sets_module
from mslsq.tracing.capture import capture

F64 = torch.float64
I = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
J = torch.tensor([2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5])
SPARSE = torch.where((torch.arange(300).reshape(15, 20) * 7) % 11 == 0, 1.5, 0.0).to(F64)
FULL = torch.arange(1.0, 401.0, dtype=F64).reshape(20, 20) / 400
KERNEL = torch.tensor([[[1.0, -2.0, 1.0]]], dtype=F64)
IMAGE = torch.arange(64, dtype=F64).reshape(1, 1, 8, 8) ** 2 / 64

EXACT = {
    "neighbours": lambda x: x[1:] * x[:-1].sin(),
    "a grid": lambda x: torch.cat([(x.reshape(4, 5)[1:] - x.reshape(4, 5)[:-1]).reshape(-1), x**2]),
    "an edge list": lambda x: x[I] - x[J] ** 2,
    "gathered and stacked": lambda x: torch.stack([x.gather(0, I), x.index_select(0, J)], -1).prod(-1),
    "rows of a sparse matrix": lambda x: SPARSE @ x,
    "a sparse matrix times a matrix": lambda x: (SPARSE @ x.reshape(20, 1).expand(20, 3).cos()).reshape(-1),
    "a matrix times a sparse one": lambda x: (x[None].sin() @ SPARSE.T).reshape(-1),
    "small matrices": lambda x: (x.reshape(5, 2, 2) @ x.reshape(5, 2, 2).mT).reshape(-1),
    "einsum": lambda x: torch.einsum("bij,bj->bi", x[:12].reshape(3, 2, 2), x[12:18].reshape(3, 2)).reshape(-1),
    "groups": lambda x: torch.softmax(x.reshape(5, 4), -1).reshape(-1),
    "norms": lambda x: x.reshape(5, 4).norm(dim=1),
    "spreads": lambda x: torch.stack([x.max(), x[:4].logsumexp(0), x[5:9].var(), x[3:6].prod(), x[::4].mean()])[1:],
    "a kernel": lambda x: torch.nn.functional.conv1d(x.reshape(2, 1, 10), KERNEL, padding=1).reshape(-1),
    "a strided kernel": lambda x: torch.nn.functional.conv2d(
        x[:16].reshape(1, 1, 4, 4), KERNEL[..., :2, None] * 1.5, stride=(2, 1)
    ).reshape(-1),
    "padding": lambda x: torch.nn.functional.pad(x, (2, 2), value=7.0).diff(),
    "reflection": lambda x: torch.nn.functional.pad(x[None, None], (2, 2), mode="reflect").reshape(-1).diff(),
    "windows": lambda x: x.unfold(0, 3, 1).prod(-1),
    "complex numbers": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(10, 2)) ** 2).reshape(-1),
    "parts of complex numbers": lambda x: torch.complex(x[:10], x[10:]).exp().real,
    "inverses": lambda x: torch.linalg.inv(x.reshape(5, 2, 2) + 5 * torch.eye(2, dtype=F64)).reshape(-1),
    "accumulation": lambda x: x.new_zeros(20).index_add(0, I, x[:12].exp()),
    "scattering": lambda x: x.new_zeros(20).scatter_add(0, J, x[I] * x[:12]),
    "a triangle": lambda x: x.reshape(4, 5).tril().reshape(-1),
    "a constant": lambda x: x.floor() + x.sign() + torch.ones_like(x) * 3 + x,
    "a cast": lambda x: (x.to(torch.float32) * 2).to(F64),
    "repetition": lambda x: x[:5].repeat(4) * x.repeat_interleave(2)[:20],
    "in place": lambda x: _in_place(x),
}
"""Residuals whose pattern is known exactly: every entry found is a non-zero at a general point."""

CAUTIOUS = {
    "the larger": lambda x: torch.where(x > 0.5, x.flip(0), x) + torch.maximum(x, x.roll(1)),
    "sorting": lambda x: x.reshape(4, 5).sort(-1)[0].reshape(-1),
    "the largest of a group": lambda x: x.reshape(4, 5).amax(-1),
    "an index from the unknowns": lambda x: x[(10 * x).long().clamp(0, 19)],
    "cumulative sums": lambda x: x.reshape(4, 5).cumsum(-1).reshape(-1),
    "a full matrix": lambda x: FULL @ x,
    "an unknown operation": lambda x: torch.fft.fft(x).real,
    "cross products": lambda x: torch.linalg.cross(x[:18].reshape(6, 3), x.roll(1)[:18].reshape(6, 3)).reshape(-1),
    "replacing": lambda x: torch.index_put(x, (I[:3],), x[10:13]),
    "adding up": lambda x: torch.index_put(x, (I,), x[:12], accumulate=True),
}
"""Residuals whose pattern may have more entries than are non-zero at a point."""


def _in_place(x):
    error = torch.zeros(20, dtype=x.dtype)
    for k in range(4):
        error[5 * k : 5 * k + 5] = x[k] * x[5 * k : 5 * k + 5]
    error[3] += x[19]
    return error


def patterns(residual, n=20, **inputs):
    """The pattern found, and that of the dense Jacobian at a general point."""
    x = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=F64) + 0.1
    captured = capture(lambda x: residual(x, **inputs), (x,), name="toy")
    dependence = dependence_of(lambda delta, storages, given: captured(storages[0] + delta), n, (x,), {})
    dense = torch.func.jacrev(captured)(x) != 0
    return torch.from_numpy(dependence.sets.toarray()), dense


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", EXACT)
def test_the_pattern_is_that_of_the_dense_jacobian(name):
    found, dense = patterns(EXACT[name])
    assert torch.equal(found, dense)


@pytest.mark.parametrize("name", CAUTIOUS)
def test_the_pattern_holds_all_that_is_in_the_dense_jacobian(name):
    found, dense = patterns(CAUTIOUS[name])
    assert not (dense & ~found).any()


@pytest.mark.parametrize("name", ["the larger", "sorting", "the largest of a group", "cumulative sums"])
def test_caution_stays_within_its_group(name):
    assert patterns(CAUTIOUS[name])[0].sum(1).max() <= 5


def followed(function, inputs, batched=frozenset()):
    x = torch.rand(20, dtype=F64)
    return dependence_of(lambda delta, storages, given: function(storages[0] + delta, given), 20, (x,), inputs, batched)


def test_an_index_tensor_is_remembered_and_other_inputs_are_not():
    found = followed(
        lambda x, given: given["w"] * (x[given["i"]] - x[given["j"]]), {"i": I, "j": J, "w": torch.rand(12)}
    )
    assert found.pinned == {"i", "j"}


def test_an_index_that_is_computed_from_data_pins_the_data():
    found = followed(lambda x, given: x[(10 * given["where"]).long()], {"where": torch.rand(7)})
    assert found.pinned == {"where"}
    assert found.sets.nnz == 7


def test_an_index_that_differs_within_the_batch_is_taken_for_any():
    found = followed(lambda x, given: x[given["i"]], {"i": I}, frozenset("i"))
    assert not found.pinned
    assert found.sets.nnz == 12 * 20


def test_a_table_read_at_an_index_from_the_unknowns_has_no_derivative():
    found = followed(lambda x, given: given["table"][(10 * x).long()] + x, {"table": torch.rand(20, dtype=F64)})
    assert found.sets.nnz == 20


def test_grid_sample_of_a_constant_image_depends_on_its_own_coordinates():
    def residual(x, given):
        grid = x.reshape(1, 2, 5, 2) * 2 - 1
        return torch.nn.functional.grid_sample(given["image"], grid, align_corners=True).reshape(-1)

    found = followed(residual, {"image": IMAGE})
    assert found.sets.indptr.tolist() == list(range(0, 22, 2))
    assert not found.pinned


def test_a_pattern_too_large_to_store_is_refused(monkeypatch):
    monkeypatch.setattr(sets_module, "LARGEST", 100)
    with pytest.raises(TooDenseError):
        followed(lambda x, given: x - x.sum(), {})


OPERATIONS = [
    lambda x: x[1:] - x[:-1],
    lambda x: x * x.roll(2),
    lambda x: torch.cat([x[::2], x.flip(0)[:3]]),
    lambda x: x.reshape(2, -1).sum(0) if x.numel() % 2 == 0 else x.exp(),
    lambda x: torch.stack([x, x.roll(1)], -1).prod(-1),
    lambda x: torch.outer(x[:2], x).reshape(-1),
    lambda x: torch.nn.functional.pad(x, (1, 0)) if x.numel() < 30 else x[:15],
    lambda x: x.index_add(0, torch.tensor([0, 0, 1]), x[-3:]),
    lambda x: torch.where(torch.arange(x.numel()) % 3 == 0, x, x.sin()),
]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=5))
def test_no_entry_is_missing_whatever_is_composed(operations):
    def residual(x):
        for operation in operations:
            x = operation(x) if x.numel() >= 4 else x
        return x

    found, dense = patterns(residual, n=9)
    assert not (dense & ~found).any()


def test_a_search_that_leads_nowhere_is_given_up():
    with pytest.raises(TooDenseError, match="mm"):
        dependence_of(
            lambda delta, storages, given: (FULL @ (storages[0] + delta)[:, None]).reshape(-1),
            20,
            (torch.rand(20, dtype=F64),),
            {},
            largest=300,
        )

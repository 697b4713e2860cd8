"""All ways to the Jacobian give that of `torch.func.jacrev` on the flat parameters, and products agree with it."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from mslsq.optim import PerSample, ResidualError
from mslsq.optim.evaluation import Repeatable, evaluated
from mslsq.optim.jacobian import Jacobian
from mslsq.optim.layers import LayerRows, Recording
from mslsq.optim.numbers import Numbers
from mslsq.optim.per_sample import SampleRows

D = torch.float64
CPU = torch.device("cpu")


class Curve(nn.Module):
    """Parameters that are not those of a layer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([1.0, 2.0], dtype=D)), nn.Parameter(torch.tensor(0.5, dtype=D))

    def forward(self, x):
        return self.a[0] * torch.exp(-self.b * x) + self.a[1]


class Twice(nn.Module):
    """One layer is used twice, and its weight once more, by itself."""

    def __init__(self, by_itself: bool):
        super().__init__()
        self.layer, self.by_itself = nn.Linear(2, 2).double(), by_itself

    def forward(self, x):
        y = torch.tanh(self.layer(torch.tanh(self.layer(x))))
        return y + x @ self.layer.weight if self.by_itself else y


def net(*inner: nn.Module, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), *inner, nn.Linear(5, outputs)).double()


MODELS = {
    "a network": lambda: net(nn.Tanh()),
    "three outputs": lambda: net(nn.Tanh(), outputs=3),
    "in-place activation": lambda: net(nn.ReLU(inplace=True)),
    "a layer used twice": lambda: Twice(False),
    "a weight used by itself": lambda: Twice(True),
    "no bias": lambda: nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False)).double(),
    "layer normalisation": lambda: net(nn.LayerNorm(5), nn.Tanh()),
    "batch normalisation": lambda: net(nn.BatchNorm1d(5), nn.Tanh()),
    "a curve": Curve,
}
BY_LAYERS = {"a network", "three outputs", "in-place activation", "a layer used twice", "no bias"}


def reference(model, residual):
    """(m, n) by `jacrev` on a dict of the parameters."""
    named = {name: p.detach() for name, p in model.named_parameters()}
    jacobian = jacrev(lambda named: residual(lambda *x: functional_call(model, named, x)).reshape(-1))(named)
    return torch.cat([jacobian[name].reshape(-1, p.numel()) for name, p in named.items()], 1)


def gathered(blocks, m, n):
    found = torch.full((m, n), torch.nan, dtype=D)
    for which, block in blocks:
        assert bool(found[which].isnan().all())
        found[which] = block
    return found


def jacobian_of(model, residual, with_layers=True):
    parameters = list(model.parameters())
    recording = Recording()
    with recording:
        at_start = evaluated(residual, parameters)
    layers = LayerRows(at_start.parts, parameters, recording.calls)
    return Jacobian(at_start.vector(), parameters, [layers] if with_layers else [], Numbers(CPU))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("samples", [7, 100])
def test_every_model_has_the_jacobian_of_jacrev(name, samples):
    torch.manual_seed(0)
    model, x = MODELS[name](), torch.randn(samples, 2, dtype=D)
    for buffer in model.buffers():
        buffer.requires_grad_(False)
    jacobian = jacobian_of(model, lambda: model(x))
    expected = jacrev_with_buffers(model, x)
    way, blocks = jacobian.blocks(2**20)
    found = gathered(blocks, *expected.shape)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert (way == "layers") == (name in BY_LAYERS)


def jacrev_with_buffers(model, x):
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    named = {name: p.detach() for name, p in model.named_parameters()}

    def function(named):
        return functional_call(model, {**named, **{k: v.clone() for k, v in buffers.items()}}, (x,)).reshape(-1)

    rows = []  # plain reverse mode, a row at a time
    named = {name: p.requires_grad_() for name, p in named.items()}
    r = function(named)
    for i in range(len(r)):
        gradients = torch.autograd.grad(r[i], list(named.values()), retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in gradients]))
    return torch.stack(rows)


@pytest.mark.parametrize(("samples", "way"), [(100, "columns"), (5, "rows")])
def test_without_layers_the_shorter_side_is_taken(samples, way):
    model, x = net(nn.Tanh()), torch.randn(samples, 2, dtype=D)
    jacobian = jacobian_of(model, lambda: model(x), with_layers=False)
    found, blocks = jacobian.blocks(2**20)
    assert found == way
    expected = reference(model, lambda call: call(x))
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-13)


@pytest.mark.parametrize("kind", ["layers", "samples", "rows"])
@pytest.mark.parametrize("memory", [1, 2000, 10000])
def test_small_memory_makes_small_blocks_of_the_same_rows(kind, memory):
    torch.manual_seed(0)
    model, x = net(nn.Tanh(), outputs=2), torch.randn(40, 2, dtype=D)
    parameters = list(model.parameters())
    if kind == "samples":
        closure = PerSample(model, lambda model, x: model(x), x)
        evaluation = Repeatable(closure, CPU, ())
        residual = closure().reshape(-1)
        jacobian = Jacobian(
            residual, parameters, [SampleRows(closure, parameters, evaluation, len(residual))], Numbers(CPU)
        )
    else:
        jacobian = jacobian_of(model, lambda: model(x), with_layers=kind == "layers")
    expected = reference(model, lambda call: call(x))
    way, blocks = jacobian.blocks(memory)
    blocks = list(blocks)
    assert way == kind
    assert len(blocks) > 1 and max(len(block) for _, block in blocks) <= max(2, memory // (8 * expected.shape[1]))
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-13)


def test_products_are_those_of_the_jacobian_and_of_finite_differences():
    torch.manual_seed(0)
    model, x = net(nn.Tanh(), nn.Linear(5, 5), nn.Sigmoid()), torch.randn(30, 2, dtype=D)
    jacobian = jacobian_of(model, lambda: model(x))
    expected = reference(model, lambda call: call(x))
    u, v = torch.randn(30, dtype=D), torch.randn(expected.shape[1], dtype=D)
    assert torch.allclose(jacobian.product(v), expected @ v, atol=1e-12)
    assert torch.allclose(jacobian.transposed(u), expected.T @ u, atol=1e-12)

    def moved(step):
        with torch.no_grad():
            start = nn.utils.parameters_to_vector(model.parameters()).clone()
            nn.utils.vector_to_parameters(start + step * v, model.parameters())
            value = model(x).reshape(-1)
            nn.utils.vector_to_parameters(start, model.parameters())
        return value

    difference = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert torch.allclose(jacobian.product(v), difference, rtol=1e-6, atol=1e-8)


def test_several_tensors_with_samples_of_their_own_go_by_layers():
    torch.manual_seed(0)
    model, x, z = net(nn.Tanh()), torch.randn(40, 2, dtype=D), torch.randn(9, 2, dtype=D)
    jacobian = jacobian_of(model, lambda: (model(x), 3 * model(z)))
    expected = torch.cat([reference(model, lambda call: call(x)), 3 * reference(model, lambda call: call(z))])
    way, blocks = jacobian.blocks(2**20)
    assert way == "layers"
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-13)


def test_layers_are_applied_along_sequences():
    torch.manual_seed(0)
    model, x = net(nn.Tanh()), torch.randn(40, 3, 2, dtype=D)
    jacobian = jacobian_of(model, lambda: model(x).sum(1))
    expected = reference(model, lambda call: call(x).sum(1))
    way, blocks = jacobian.blocks(2**20)
    assert way == "layers"
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-13)


class Once(torch.autograd.Function):
    """Its backward pass is in NumPy: it cannot be differentiated, nor batched."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return torch.from_numpy(g.numpy() * 3 * ctx.saved_tensors[0].numpy() ** 2)


def test_an_operator_with_the_least_of_derivatives_goes_row_by_row():
    model, x = Curve(), torch.linspace(0, 1, 20, dtype=D)
    jacobian = jacobian_of(model, lambda: Once.apply(model(x)))
    way, blocks = jacobian.blocks(2**20)
    assert way == "rows"
    expected = reference(model, lambda call: call(x) ** 3)
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-12)
    with pytest.raises(ResidualError, match='system="normal"'):
        jacobian.product(torch.ones(3, dtype=D))


def test_samples_that_depend_on_each_other_are_noticed():
    torch.manual_seed(0)
    model, x = net(nn.Tanh()), torch.randn(8, 2, dtype=D)
    mean = {"value": None}

    def leaking(model, x):
        return model(x) - (0 if mean["value"] is None else mean["value"])

    closure = PerSample(model, leaking, x)
    parameters = list(model.parameters())
    mean["value"] = model(x).mean(0)  # a graph that the derivative of one sample does not see
    residual = closure().reshape(-1)
    jacobian = Jacobian(
        residual, parameters, [SampleRows(closure, parameters, Repeatable(closure, CPU, ()), 8)], Numbers(CPU)
    )
    with pytest.raises(ResidualError, match="function of its own sample"):
        jacobian.blocks(2**20)


def test_sparse_gradients_of_embeddings_are_rows_like_others():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 1)).double(), torch.randint(6, (25,))
    jacobian = jacobian_of(model, lambda: model(x))
    dense = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 1)).double()
    dense.load_state_dict(model.state_dict())
    expected = jacrev_with_buffers(dense, x)
    _, blocks = jacobian.blocks(2**20)
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-13)


def test_a_wrong_row_of_a_small_parameter_is_noticed():
    """One parameter has 1e-10 of the influence of the others, and layers see half of it."""
    torch.manual_seed(0)
    x = torch.randn(50, 2, dtype=D)
    big, small = (nn.Linear(2, 1, bias=False).double() for _ in range(2))
    model = nn.ModuleList([big, small])
    jacobian = jacobian_of(model, lambda: big(x) + 1e-10 * (small(x) + x @ small.weight.T))
    way, blocks = jacobian.blocks(2**20)
    assert way != "layers"
    expected = torch.cat([x, 2e-10 * x], 1)
    assert torch.allclose(gathered(blocks, 50, 4), expected, rtol=1e-12, atol=0)


def test_a_compiled_network_is_left_in_one_piece(recwarn):
    model, x = net(nn.Tanh()), torch.randn(12, 2, dtype=D)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    jacobian = jacobian_of(compiled, lambda: compiled(x))
    way, blocks = jacobian.blocks(2**20)
    assert way == "rows" and not [w for w in recwarn if "Dynamo" in str(w.message)]
    expected = jacrev_with_buffers(model, x)
    assert torch.allclose(gathered(blocks, *expected.shape), expected, atol=1e-13)

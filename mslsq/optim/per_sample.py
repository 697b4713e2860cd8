"""A closure written for one sample: its Jacobian takes a few passes over a batch instead of hundreds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from mslsq.optim.errors import ResidualError
from mslsq.optim.evaluation import Repeatable
from mslsq.optim.jacobian import Block


class PerSample:
    """Residuals of a batch from the residual of ONE sample: a closure for `LevenbergMarquardt.step`.

    Rows of the Jacobian are then computed sample by sample, under `torch.func.vmap`, for every kind of layer and for
    residuals that hold derivatives of the network in its input. A plain closure `lambda: model(x) - y` is as fast where
    all parameters are those of linear layers; elsewhere it needs a pass over the batch for every residual or parameter.

    Args:
        model: its parameters that the optimizer has are differentiated. Modes that mix samples, such as batch
            normalisation while it trains, raise an error; use `.eval()`, or another normalisation.
        residual: `residual(model, *sample)` of one sample, without a batch axis: a real or complex tensor of any shape.
            The default is prediction minus target, `model(x) - y`. Derivatives in the input are written with
            `torch.func` (`torch.func.grad(lambda x: model(x).sum())(x)`).
        data: tensors with one entry per sample along their first axis.
        chunk_size: how many samples are evaluated and differentiated together; by default all, if the optimizer's
            memory holds their rows. Random numbers (dropout) are drawn per sample.

    Calling it gives the residuals of all samples, with their graph. It can be used without the optimizer.

    Raises:
        ResidualError: data that are no tensors, or do not have the same number of samples.

    >>> import torch, mslsq
    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> optimizer = mslsq.optim.LevenbergMarquardt(model.parameters())
    >>> loss = optimizer.step(mslsq.optim.PerSample(model, lambda model, x, y: model(x) - y, x, torch.sin(3 * x)))
    """

    def __init__(
        self,
        model: nn.Module,
        residual: Callable[..., Tensor] | None,
        *data: Tensor,
        chunk_size: int | None = None,
    ):
        self.stated = _Stated(model, residual or _difference)
        self.data = data
        self.chunk_size = chunk_size
        if not data or not all(isinstance(entry, Tensor) and entry.dim() > 0 for entry in data):
            given = ", ".join(type(entry).__name__ for entry in data) or "none"
            raise ResidualError(
                f"PerSample: data must be tensors with one entry per sample along the first axis, not {given}."
            )
        if len({len(entry) for entry in data}) > 1:
            shapes = ", ".join(str(tuple(entry.shape)) for entry in data)
            raise ResidualError(
                f"PerSample: the first axis of all data is that of the samples, but shapes are {shapes}."
            )

    def __call__(self) -> Tensor:
        """(samples, ...) The residuals, with a graph to the parameters."""
        named = dict(self.stated.named_parameters())
        return torch.cat(list(self._by_chunks(self._of_sample, named, self.chunk_size or len(self))))

    def __len__(self) -> int:
        return len(self.data[0])

    def jacobians(self, parameters: list[Tensor], chunk: int) -> Iterator[Tensor]:
        """The rows of `chunk` samples after the other, (samples · outputs, n); zero columns for what the model has not.

        Raises:
            ResidualError: the model has none of the parameters.
        """
        names = {id(tensor): name for name, tensor in self.stated.named_parameters()}
        wanted = [names.get(id(parameter)) for parameter in parameters]
        fitted = {name: p.detach() for name, p in zip(wanted, parameters, strict=True) if name is not None}
        if not fitted:
            raise ResidualError("PerSample: the model has none of the optimizer's parameters.")

        def real(named: dict[str, Tensor], *sample: Tensor) -> Tensor:
            result = self._of_sample(named, *sample)
            return (torch.view_as_real(result) if result.is_complex() else result).reshape(-1)

        for block in self._by_chunks(jacrev(real), fitted, chunk):
            rows = next(iter(block.values())).shape[:2].numel()
            flat = [
                parameter.new_zeros(rows, parameter.numel()) if name is None else block[name].reshape(rows, -1)
                for name, parameter in zip(wanted, parameters, strict=True)
            ]
            yield torch.cat(flat, 1)

    def _of_sample(self, named: dict[str, Tensor], *sample: Tensor) -> Tensor:
        result = functional_call(self.stated, named, sample)
        if not isinstance(result, Tensor):
            raise ResidualError(f"PerSample: the residual of a sample must be a tensor, not {type(result).__name__}.")
        return result

    def _by_chunks(self, function: Callable[..., Any], named: Mapping[str, Tensor], chunk: int) -> Iterator[Any]:
        mapped = vmap(function, in_dims=(None, *[0] * len(self.data)), randomness="different")
        for start in range(0, max(len(self), 1), chunk or 1):
            yield mapped(named, *(entry[start : start + chunk] for entry in self.data))


class SampleRows:
    """Rows of the Jacobian by reverse mode of one sample, under `vmap`.

    Args:
        closure: has been evaluated for `parts`.
        parameters: those of the optimizer.
        evaluation: in which random numbers are those of that evaluation.
        num_rows: of all samples.
    """

    name = "samples"
    required = True

    def __init__(self, closure: PerSample, parameters: list[Tensor], evaluation: Repeatable, num_rows: int):
        self.closure, self.parameters, self.evaluation = closure, parameters, evaluation
        self.outputs = num_rows // len(closure)

    def blocks(self, rows: int) -> Iterator[Block]:
        chunk = max(1, min(self.closure.chunk_size or len(self.closure), rows // max(self.outputs, 1)))
        start = 0
        with self.evaluation.replayed():
            for block in self.closure.jacobians(self.parameters, chunk):
                yield slice(start, start + len(block)), block
                start += len(block)


class _Stated(nn.Module):
    """The residual of a sample as a module, so that all calls of the model inside see the parameters passed."""

    def __init__(self, model: nn.Module, residual: Callable[..., Tensor]):
        super().__init__()
        self.model, self.residual = model, residual

    def forward(self, *sample: Tensor) -> Tensor:
        return self.residual(self.model, *sample)


def _difference(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x) - y

"""What is kept from one call to the next must not remember the transforms that were running when it was made."""

import numpy as np
import pytest
import torch
from torch.func import grad, jvp, vmap

from mslsq.levels import kept_tensors, python_numbers
from mslsq.private import transforms_are_active

TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).sum())(torch.ones(2)),
    "jvp": lambda f: jvp(f, (torch.ones(2),), (torch.ones(2),)),
    "vmap": lambda f: vmap(f)(torch.ones(2)),
    "vmap of grad": lambda f: vmap(grad(f))(torch.ones(2)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_tensors_made_inside_of_a_transform_outlive_it(transform):
    kept = []

    def function(x):
        assert transforms_are_active()
        kept.extend(kept_tensors([np.arange(3), np.array([True, False])], torch.device("cpu")))
        return x * kept[0].sum()

    transform(function)
    numbers, flags = kept[:2]
    # A wrapper of a level that has ended raises "escaped?" at its next use.
    assert jvp(lambda x: x * numbers, (torch.ones(3),), (torch.ones(3),))[1].tolist() == [0, 1, 2]
    assert numbers[flags.nonzero()[0]].tolist() == [0]


def test_on_a_cpu_they_share_the_memory_of_the_arrays():
    array = np.arange(3)
    (tensor,) = kept_tensors([array], torch.device("cpu"))
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2]


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_the_numbers_of_a_mask_made_or_given_inside_of_a_transform_are_read(transform):
    outside, seen = torch.tensor([True, False]), []

    def function(x):
        inside = torch.ones(3, dtype=torch.int64)
        inside[torch.tensor([1])] = 0
        seen.append((python_numbers(inside), python_numbers(outside), python_numbers(torch.tensor(2.5))))
        return x * 1.0

    transform(function)
    assert seen[0] == ([1, 0, 1], [True, False], 2.5)


def test_what_a_vmap_maps_is_not_read_as_if_it_were_one_of_them():
    with pytest.raises(RuntimeError):
        vmap(lambda x: x * python_numbers(x))(torch.ones(2))

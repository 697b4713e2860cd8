"""Pairs of files, each aligned by itself: the results of `align`, failures as rows."""

import numpy as np
import pytest
import torch

from mslsq.alignment import AlignmentOptionError, MapStatus, Pair, align, align_pairs, synthetic

pytest.importorskip("imageio")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two maps that overlap, one that is constant, and a file that is none."""
    folder = tmp_path_factory.mktemp("maps")
    pair = synthetic.make_pair("camera", "translation", seed=1, size=96)
    np.save(folder / "a.npy", pair.reference.numpy())
    np.save(folder / "b.npy", pair.moving.numpy())
    np.save(folder / "flat.npy", np.zeros((60, 60)))
    (folder / "broken.npy").write_text("nothing")
    return folder


def pairs_in(folder):
    names = [("a", "b"), ("b", "a"), ("a", "flat"), ("broken", "a"), ("a", "missing")]
    return [(folder / f"{first}.npy", folder / f"{second}.npy") for first, second in names]


def test_results_are_those_of_align_and_failures_are_rows_with_reasons(folder, tmp_path):
    found = list(align_pairs(pairs_in(folder), model="translation", journal=tmp_path / "pairs.jsonl"))
    assert [one.index for one in found] == [0, 1, 2, 3, 4] and [one.ok for one in found] == [True, True] + [False] * 3
    maps = [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in "ab"]
    alone = align(maps, model="translation")
    assert torch.equal(found[0].transform, alone.transforms[1])
    numbers = ("gain", "bias", "ncc", "detail", "overlap", "corner_sigma")
    for name in numbers:
        assert getattr(found[0], name) == float(getattr(alone, name)[1])
    assert torch.allclose(found[0].transform @ found[1].transform, torch.eye(3, dtype=torch.float64), atol=0.05)
    assert found[2].status is MapStatus.CONSTANT and "constant" in found[2].reason
    assert found[3].status is MapStatus.NO_REFERENCE and "broken.npy" in found[3].reason
    assert found[4].status is MapStatus.BAD_INPUT and "there is no such file" in found[4].reason
    assert all(bool(one.transform.isnan().all()) and one.record()["transform"] is None for one in found[2:])
    again = list(align_pairs(pairs_in(folder), model="translation", journal=tmp_path / "pairs.jsonl"))
    assert all(one.kept for one in again)
    assert [one.record() for one in again] == [one.record() for one in found]
    assert torch.equal(again[0].transform, found[0].transform)


def test_other_files_or_options_are_not_taken_for_those_of_the_journal(folder, tmp_path):
    pairs = pairs_in(folder)[2:3]
    list(align_pairs(pairs, model="translation", journal=tmp_path / "pairs.jsonl"))
    with pytest.raises(ValueError, match=r"options\.model = "):
        align_pairs(pairs, model="se2", journal=tmp_path / "pairs.jsonl")
    with pytest.raises(ValueError, match="pairs and files = "):
        align_pairs([pairs[0][::-1]], model="translation", journal=tmp_path / "pairs.jsonl")


def test_a_start_and_a_model_of_its_own_belong_to_a_pair(folder):
    a, b = pairs_in(folder)[0]
    (whole,) = align_pairs([(a, b)], model="translation")
    near = whole.transform.clone()
    near[0, 2] += 1.0
    (found,) = align_pairs([Pair(a, b, near, "se2")], model="translation")
    assert found.ok and found.model == "se2"
    assert (found.transform[:2, 2] - whole.transform[:2, 2]).abs().max() < 0.1


@pytest.mark.parametrize(
    ("pairs", "options", "says"),
    [
        ([("a", "b")], {"modle": "se2"}, "no option 'modle' of all pairs. Did you mean 'model'"),
        ([("a", "b")], {"model": "afine"}, "model must be one of"),
        ([("a", "b", None, "afine")], {}, "model must be one of"),
        ([("a",)], {}, r"A pair is \(reference, map\)"),
        ([("a", "b", [1, 2])], {}, "3 x 3"),
        ([(torch.zeros(3, 3), "b")], {}, "aligned by `align`"),
    ],
)
def test_what_is_not_valid_is_said_before_the_work(pairs, options, says):
    with pytest.raises(AlignmentOptionError, match=says):
        align_pairs(pairs, **options)


@pytest.mark.slow
def test_two_processes_find_what_one_does(folder):
    pytest.importorskip("joblib")
    one, two = (list(align_pairs(pairs_in(folder), model="translation", n_jobs=n_jobs)) for n_jobs in (1, 2))
    timeless = lambda found: {**found.record(), "seconds": 0}  # noqa: E731
    assert list(map(timeless, one)) == list(map(timeless, sorted(two, key=lambda found: found.index)))

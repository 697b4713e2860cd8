"""Compressed files: read piece by piece, and no further than what text of numbers becomes."""

import bz2
import gzip
import tracemalloc

import pytest

from mslsq.datasets import lines
from mslsq.datasets.bal import read_bal
from mslsq.datasets.g2o import read_g2o
from mslsq.datasets.nist import MalformedFileError
from mslsq.datasets.toro import read_toro

PACK = {".gz": gzip.compress, ".bz2": bz2.compress}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
@pytest.mark.parametrize("read", [read_g2o, read_bal, read_toro])
def test_a_bomb_is_refused_and_never_held_whole(tmp_path, monkeypatch, suffix, read):
    monkeypatch.setattr(lines, "ALWAYS_READ", 1 << 22)
    path = tmp_path / f"bomb.txt{suffix}"
    path.write_bytes(PACK[suffix](bytes(1 << 26)))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFileError, match=r"bomb\.txt.*become more than.*decompress it first"):
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 25  # the limit, 4 to 7 MB, twice and some; the content is 64 MiB


def test_a_graph_of_equal_edges_is_no_bomb(tmp_path, monkeypatch):
    """The text that packs best of all that is read: 43 times with bzip2."""
    monkeypatch.setattr(lines, "ALWAYS_READ", 0)
    end = " 1 0 0 0 0 0 1 1 0 0 0 0 0 1 0 0 0 0 1 0 0 0 1 0 0 1 0 1\n"
    text = "".join(f"EDGE_SE3:QUAT {i} {i + 1}{end}" for i in range(20_000))
    for suffix, pack in PACK.items():
        path = tmp_path / f"graph.g2o{suffix}"
        path.write_bytes(pack(text.encode()))
        assert lines.read_lines(path) == text.splitlines()

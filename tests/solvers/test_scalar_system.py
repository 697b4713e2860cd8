"""What programs of whole problems read."""

from mslsq.native.linearizing_text import DATA, INTEGERS, Source
from mslsq.solvers.scalar_system import Reads


def test_what_no_output_depends_on_is_not_read():
    reads = Reads({0: Source("x", 0, 3)})
    reads.add(3, 0, "t", 32, is_real=True, is_own=False)
    reads.add(4, 0, "y", 32, is_real=True, is_own=True)
    reads.add(5, 0, "kind", 2, is_real=False, is_own=True)
    reads.add(6, 1, "w", 5, is_real=True, is_own=True)
    kept = reads.without_unread({0, 5, 6})
    assert kept.own == [(0, "kind"), (1, "w")] and kept.shared == reads.shared
    assert kept.sources == {0: Source("x", 0, 3), 3: reads.sources[3], 5: Source(INTEGERS, 0, 2), 6: Source(DATA, 0, 5)}
    assert (kept.data, kept.integers) == (5, 2)

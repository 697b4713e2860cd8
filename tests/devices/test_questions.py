"""A few of all front doors x linear solvers x adjoints; `questions.py` counts them all, for an hour of a core."""

import pytest

from tests.devices.claimed import REAL, Device
from tests.devices.elsewhere import elsewhere
from tests.devices.questions import AROUND, counted

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.skipif(REAL is not None, reason="counted on the claimed device alone"),
]
DIFFERENTIATED = 4
"""Questions of a solve whose derivative is wanted: is it at its minimum, does the derivative exist?"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "names",
    [
        ("fits with bounds", "Cholesky", "Unrolled"),
        ("layer", "Schur", "Implicit"),
        ("prepared", "auto", "DirectLoss"),
        ("curve_fit, a batch", "QR", "Gauss-Newton"),
        ("bundle adjustment", "matrix-free", "Detached"),
        ("one fit", "UnrolledCholesky", "least norm"),
        ("graphs, a batch", "auto", "Truncated"),
    ],
    ids=" - ".join,
)
@elsewhere
def test_a_step_asks_once_and_without_an_early_stop_never(names: tuple[str, str, str], device: Device):
    never = counted(device, *names, early_stop=False)
    assert (never.forward, never.backward) == (0, 0), device.transfers
    once = counted(device, *names, early_stop=True)
    assert once.excess(early_stop=True) <= AROUND + DIFFERENTIATED, once
    assert once.backward == 0, once

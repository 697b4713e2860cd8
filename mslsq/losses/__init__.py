"""Robust losses: how much a squared residual counts, one class per loss.

The convention is that of Ceres and of ``scipy.optimize.least_squares``: the cost of a problem is ``½ Σ ρ(s)`` with the
squared norm ``s = ‖r‖²`` of each block, and every loss is written in units of its ``scale`` c,

    ρ(s) = c² ρ₁(s / c²),        ρ₁(z) = z + O(z²),

so that ρ(0) = 0, ρ'(0) = 1: residuals much smaller than c count as in plain least squares. ρ'(s) is the weight that
iteratively reweighted least squares gives to the block.

========================  ==========================================  ======================  ========================
loss                      ρ₁(z)                                       in r = √z               tuning (c for unit noise)
========================  ==========================================  ======================  ========================
:class:`Huber`            z, beyond z = 1: 2√z − 1                    convex                  1.345
:class:`SoftL1`           2(√(1 + z) − 1)                             convex                  1.287
:class:`Cauchy`           log(1 + z)                                  redescending            2.385
:class:`Arctan`           arctan z                                    redescending            2.571
:class:`Tukey`            (1 − (1 − z)³)/3, beyond z = 1: 1/3         redescending, rejects   4.685
:class:`GemanMcClure`     z/(1 + z)                                   redescending            3.787
:class:`Welsch`           1 − exp(−z)                                 redescending            2.985
:class:`Barron`           2|α−2|/α · ((1 + z/|α−2|)^(α/2) − 1)        convex for 1 ≤ α ≤ 2    1.287 (α = 1)
========================  ==========================================  ======================  ========================

The tuning constants give 95 % of the efficiency of least squares when the residuals are Gaussian with unit standard
deviation; multiply by the noise's own (for instance ``1.4826 × median |r|``) to get the ``scale``.

Nothing here takes a square root at zero, and no unselected branch holds an infinity, so derivatives of every order
are finite at s = 0 and for huge s, under any nesting of ``vmap``, ``jacfwd`` and ``jacrev``. (Derivatives in the scale
pass through s/c⁴, which must not overflow: at s = 1e300 that asks for c > 0.01.)
"""

from mslsq.losses.barron import Barron
from mslsq.losses.convex import Huber, SoftL1
from mslsq.losses.redescending import Arctan, Cauchy, GemanMcClure, Tukey, Welsch
from mslsq.losses.robust_loss import RobustLoss

__all__ = ["Arctan", "Barron", "Cauchy", "GemanMcClure", "Huber", "RobustLoss", "SoftL1", "Tukey", "Welsch"]

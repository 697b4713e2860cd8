"""Problems with known answers and files of problems: NIST's certified regressions (`nist`), the test problems of Moré,
Garbow and Hillstrom (`classic`), those of Hock and Schittkowski under constraints (`constrained`), pose graphs and
bundle adjustments."""

from mslsq.datasets import classic, constrained, nist
from mslsq.datasets.bal import BundleAdjustment, read_bal, write_bal
from mslsq.datasets.g2o import read_g2o, write_g2o
from mslsq.datasets.nist import MalformedFileError
from mslsq.datasets.pose_graph import PoseGraph
from mslsq.datasets.synthetic_graphs import SyntheticGraph, ring_graph, sphere_graph
from mslsq.datasets.toro import read_toro, write_toro

__all__ = [
    "BundleAdjustment",
    "MalformedFileError",
    "PoseGraph",
    "SyntheticGraph",
    "classic",
    "constrained",
    "nist",
    "read_bal",
    "read_g2o",
    "read_toro",
    "ring_graph",
    "sphere_graph",
    "write_bal",
    "write_g2o",
    "write_toro",
]

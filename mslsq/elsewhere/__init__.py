"""What things are called in SciPy, Ceres, GTSAM, Theseus, PyPose, Sophus and manif, and what they are called here.

The error for another library's word says ours.
"""

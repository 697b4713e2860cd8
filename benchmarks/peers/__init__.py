"""The solvers that the sparse benchmarks run beside this library: Ceres through small C++ programs, GTSAM in Python."""

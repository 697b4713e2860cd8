"""The marks of SciPy's own tests."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("fail_slow(seconds)", "parallel_threads_limit(threads)", "thread_unsafe(reason)"):
        config.addinivalue_line("markers", f"{mark}: of SciPy's tests; means nothing here")

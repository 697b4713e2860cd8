"""SIGTERM ends a run as Ctrl-C does, and nothing else."""

import multiprocessing
import os
import signal
import time

import pytest

pytest.importorskip("hydra")
command_line = pytest.importorskip("command_line")


def test_sigterm_interrupts_a_run_and_is_given_back_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), command_line.ended_when_told():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_processes_that_are_forked_from_a_run_end_at_once():
    with command_line.ended_when_told():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(10)
    assert child.exitcode == -signal.SIGTERM

"""Text becomes a library: at once, beside the solve, or never, with a sentence why; and nothing is left behind."""

import hashlib
import multiprocessing
import os
import resource
import subprocess
import sys
import threading

import pytest

import mslsq.native.background as background
from mslsq.native.folder import NAME
from mslsq.native.store import STORE
from tests.native.programs import answer, ended, forked, is_running, program, settled, wait_for_text

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes as on Unix")


def test_a_new_text_is_compiled_beside_and_there_when_it_is_asked_for_later(store, cxx):
    build = store.request(program(), wait=False)
    assert build.library() is None and not build.why
    assert "is being compiled" in build.sentence("the residual of 'between'")
    assert answer(settled(build)) == 42
    assert "'between' was compiled in" in build.sentence("the residual of 'between'")


def test_with_wait_the_library_is_there_at_once(store, cxx):
    assert answer(store.request(program(), wait=True)) == 42


def test_a_text_has_one_build_and_another_text_another(store, cxx):
    build = store.request(program(), wait=False)
    assert store.request(program(), wait=False) is build
    other = store.request(program(7), wait=True)
    assert (answer(settled(build)), answer(other)) == (42, 7)


def test_programs_may_call_the_mathematical_functions_of_the_process(store, cxx):
    source = 'extern "C" double exp(double), atan2(double, double);\n'
    source += 'extern "C" __attribute__((visibility("default"))) int answer() { return atan2(0, -1) * exp(0.5) * 100; }'
    assert answer(store.request(source, wait=True)) == 517


def test_the_compiler_of_the_package_makes_the_same_programs(store, monkeypatch):
    package = pytest.importorskip("ziglang", reason="needs the extra mslsq[native]")
    monkeypatch.setenv("CXX", f"{sys.executable} -m {package.__name__} c++")
    source = 'extern "C" double exp(double);\n' + program().replace("42", "exp(0.5) * 100")
    build = store.request(source, wait=True)
    assert answer(build) == 164 and not list(store._folder._kept.glob("new-*"))


def test_a_program_that_is_in_the_folder_needs_no_process(new_store, compiling_with, cxx):
    calls = compiling_with(f'exec {" ".join(cxx)} "$@"')
    assert answer(new_store().request(program(), wait=True)) == 42
    build = new_store().request(program(), wait=False)
    assert answer(build) == 42 and "compiled before" in build.sentence()
    assert len(calls.read_text().split()) == 1


def test_one_compiler_works_at_a_time_and_what_is_waited_for_comes_next(store, compiling_with, cxx, tmp_path):
    compiling_with(f'sleep 0.05; cat program.cpp >> "{tmp_path}/order"; exec {" ".join(cxx)} "$@"')
    early = [store.request(program(k), wait=False) for k in range(3)]
    waited = store.request(program(9), wait=True)
    assert answer(waited) == 9 and not early[1].library() and not early[2].library()
    assert [answer(settled(build)) for build in early] == [0, 1, 2]
    order = [line.partition("return ")[2][0] for line in (tmp_path / "order").read_text().splitlines()]
    assert order == ["0", "9", "1", "2"]


def test_the_compiler_is_niced_and_a_ctrl_c_does_not_reach_it(store, compiling_with):
    calls = compiling_with("sleep 20")
    store.request(program(), wait=False)
    process = int(wait_for_text(calls))
    assert os.getpriority(os.PRIO_PROCESS, process) >= min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    assert os.getpgid(process) != os.getpgid(0)


def test_a_compiler_that_is_waited_for_is_not_niced(store, compiling_with):
    calls = compiling_with('nice >> "$calls"')
    store.request(program(), wait=True)
    assert int(calls.read_text().split()[1]) == os.getpriority(os.PRIO_PROCESS, 0)


FAILURES = {
    "exit 3": "failed with exit code 3: it said nothing",
    'echo "program.cpp:1:2: error: no such thing" >&2; exit 1': "exit code 1: program.cpp:1:2: error: no such thing",
    "kill -9 $$": "ended by signal 9",
    "true": "ended without an output",
    'echo garbage > "$output"': "cannot be loaded",
    'echo "No space left on device" >&2; exit 1': "exit code 1: No space left on device",
}


@pytest.mark.parametrize("script", FAILURES)
def test_a_compiler_that_fails_is_a_clause_and_no_exception_and_not_tried_again(script, store, compiling_with, cache):
    calls = compiling_with(script)
    build = store.request(program(), wait=True)
    assert build.library() is None and FAILURES[script] in build.why and "\n" not in build.why
    assert build.sentence() == f"The native program of the residual is not used: {build.why}."
    for wait in (False, True):
        assert store.request(program(), wait=wait) is build
    assert len(calls.read_text().split()) == 1
    assert list(cache.iterdir()) == []


def test_a_compiler_that_hangs_is_ended_and_no_other_program_waits_for_it(store, compiling_with, monkeypatch):
    monkeypatch.setattr(background, "WALL_LIMIT", 0.1)
    calls = compiling_with("sleep 20")
    first, second = store.request(program(1), wait=True), store.request(program(2), wait=True)
    assert "was ended after 0.1 s without a result" in first.why and second.why == first.why
    (process,) = map(int, calls.read_text().split())
    assert not is_running(process)


BUSY = "while :; do :; done"


@pytest.mark.parametrize(
    "script", [BUSY, f"sh -c '{BUSY}'; exit 1", pytest.param(f"trap '' XCPU; {BUSY}", marks=pytest.mark.slow)]
)
def test_a_compiler_or_its_child_that_takes_too_long_of_the_processor_is_ended(
    script, store, compiling_with, monkeypatch
):
    monkeypatch.setattr(background, "PROCESSOR_LIMIT", 1)
    monkeypatch.setattr(background, "LIMITED", background.LIMITED.replace("+ 5", "+ 1"))
    calls = compiling_with(script)
    first, second = store.request(program(1), wait=True), store.request(program(2), wait=True)
    assert "was ended after 1 s of the processor without a result" in first.why and second.why == first.why
    assert len(calls.read_text().split()) == 1


def test_a_compiler_that_does_not_get_the_processor_is_not_ended(store, compiling_with, cxx, monkeypatch):
    """Beside many processes a compiler takes minutes of the clock, as one that sleeps."""
    monkeypatch.setattr(background, "PROCESSOR_LIMIT", 1)
    compiling_with(f'sleep 1.1; exec {" ".join(cxx)} "$@"')
    assert answer(store.request(program(), wait=True)) == 42


@pytest.mark.parametrize("limit", [60, None])
def test_a_lower_limit_of_the_processor_that_is_set_already_stays(limit, store, compiling_with, cxx):
    calls = compiling_with(f'ulimit -t >> "$calls"; exec {" ".join(cxx)} "$@"')

    def child() -> int:
        if limit:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        return answer(store.request(program(), wait=True))

    assert ended(forked(child)) == 42
    assert int(calls.read_text().split()[1]) == (limit or background.PROCESSOR_LIMIT)


def test_without_a_compiler_the_clause_says_what_to_install(store, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    build = store.request(program(), wait=True)
    assert build.library() is None
    assert "looked for no-such-compiler" in build.why and "mslsq[native]" in build.why


def test_an_instruction_set_that_is_unknown_is_a_clause(store, monkeypatch):
    monkeypatch.setenv("MSLSQ_TARGET", "avx1024")
    assert "MSLSQ_TARGET=avx1024" in store.request(program(), wait=True).why


def test_four_processes_that_start_at_once_all_have_the_program_and_one_is_kept(new_store, cache, cxx):
    def work() -> int:
        return answer(new_store().request(program(), wait=True))

    children = [forked(work) for _ in range(4)]
    assert [ended(child) for child in children] == [42] * 4
    (kept,) = cache.iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["program.so", "program.so.sha256"]


def test_a_fork_neither_waits_for_nor_ends_its_parents_compiler(store, compiling_with, cxx, tmp_path):
    go = tmp_path / "go"
    calls = compiling_with(f'while [ ! -e "{go}" ]; do sleep 0.01; done; exec {" ".join(cxx)} "$@"')
    build = store.request(program(), wait=False)
    parents = int(wait_for_text(calls))

    def child() -> int:
        store.forget()  # what os.register_at_fork does for the store of the process
        assert build.library() is None  # starts its own
        store.close()
        own = [int(line) for line in calls.read_text().split()][1:]
        return 7 if is_running(parents) and not any(map(is_running, own)) else 8

    assert ended(forked(child)) == 7
    go.touch()
    assert answer(settled(build)) == 42


def test_the_store_of_a_process_is_told_of_forks():
    """A child of a process that holds the store's lock can use the store."""
    with STORE._lock:
        child = forked(lambda: int(STORE._lock.acquire(timeout=5)))
        assert ended(child) == 1


def test_threads_share_a_build(store, cxx):
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(answer(store.request(program(), wait=True)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [42] * 4


def test_a_child_of_multiprocessing_ends_its_compiler(new_store, compiling_with):
    calls = compiling_with("sleep 20")
    child = multiprocessing.get_context("fork").Process(
        target=lambda: (new_store().request(program(), wait=False), wait_for_text(calls))
    )
    child.start()
    child.join(20)
    assert child.exitcode == 0 and not is_running(int(calls.read_text()))


START = """
import os, sys
from pathlib import Path
import mslsq
children = lambda: Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print(children(), os.path.exists(os.environ["MSLSQ_CACHE_DIR"]))
from mslsq.native.store import request
build = request("int x;", wait=False)
while len(Path(sys.argv[1]).read_text().split()) < 2:
    pass
print(build.library(), *Path(sys.argv[1]).read_text().split())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for children")
def test_importing_starts_nothing_and_when_python_ends_the_compiler_is_ended_with_its_children(compiling_with, cache):
    calls = compiling_with('sleep 30 & echo $! >> "$calls"; wait')
    done = subprocess.run([sys.executable, "-c", START, str(calls)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported, asked = done.stdout.splitlines()
    assert imported == "[] False"
    nothing, *processes = asked.split()
    assert nothing == "None" and not any(is_running(int(process)) for process in processes)
    assert list(cache.iterdir()) == []


def test_a_program_that_is_kept_is_told_without_loading_it(new_store, cxx):
    store = new_store()
    assert not store.is_kept(program())
    settled(store.request(program(), wait=True))
    assert store.is_kept(program()) and not store.is_kept(program(7))
    later = new_store()
    assert later.is_kept(program()) and not later._builds


def test_without_a_compiler_nothing_is_kept(store, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert not store.is_kept(program())


def test_signs_are_left_for_processes_to_come(new_store, cache, cxx):
    first = new_store()
    assert not first.has_sign("a")
    first.leave_sign("a")  # there is no folder yet
    assert not first.has_sign("a")
    settled(first.request(program(), wait=True))
    first.leave_sign("a")
    later = new_store()
    assert later.has_sign("a") and not later.has_sign("b")
    later.remove_sign("a"), later.remove_sign("b")
    assert not first.has_sign("a")


def test_signs_go_with_the_programs_that_are_not_used(new_store, cache, cxx, monkeypatch):
    store = new_store()
    settled(store.request(program(), wait=True))
    store.leave_sign("old"), store.leave_sign("new")
    for path in (cache / "sign-old", *[path for path in cache.iterdir() if not path.name.startswith("sign-")]):
        os.utime(path, (1, 1))
    monkeypatch.setenv("MSLSQ_CACHE_MIB", "0.001")
    settled(new_store().request(program(7), wait=True))
    assert not (cache / "sign-old").exists()


def test_notes_are_left_whole_and_private_for_processes_to_come(new_store, cache, cxx):
    first = new_store()
    assert first.note("a") is None
    first.leave_note("a", "words")  # there is no folder yet
    assert first.note("a") is None and not cache.exists()
    first.request(program(), wait=True)
    before = os.umask(0)
    try:
        first.leave_note("a", "words")
    finally:
        os.umask(before)
    first.leave_note("a", "others")  # the first one stays
    assert new_store().note("a") == "words" and new_store().note("b") is None
    first.leave_note("c", "words"), new_store().remove_note("c"), new_store().remove_note("c")
    assert first.note("c") is None
    assert (cache / "note-a").stat().st_mode & 0o077 == 0
    assert not list(cache.glob("new-*"))
    (cache / "note-a" / "words").write_bytes(b"\xff\xff")
    assert new_store().note("a") is None
    (cache / "note-a" / "words").unlink()
    assert new_store().note("a") is None


def test_notes_go_with_the_programs_that_are_not_used(new_store, cache, cxx, monkeypatch):
    store = new_store()
    store.request(program(), wait=True)
    store.leave_note("old", "words"), store.leave_note("new", "words")
    for path in (cache / "note-old", *[path for path in cache.iterdir() if not path.name.startswith("note-")]):
        os.utime(path, (1, 1))
    assert store.note("new") == "words"
    monkeypatch.setenv("MSLSQ_CACHE_MIB", "0.001")
    new_store().request(program(7), wait=True)
    assert not (cache / "note-old").exists()


def test_a_program_that_is_kept_is_found_by_the_hash_of_its_text(new_store, cache, cxx):
    store, digest = new_store(), hashlib.sha256(program().encode()).hexdigest()
    assert store.kept(digest) is None
    made = store.request(program(), wait=True)
    assert store.kept(digest) is made
    later = new_store()
    found = later.kept(digest)
    assert found is not None and answer(found) == 42 and later.request(program(), wait=False) is found
    (path,) = cache.rglob(NAME)
    path.chmod(0o777)
    assert new_store().kept(digest) is None


def test_a_text_that_is_with_the_compiler_is_not_kept(store, compiling_with):
    compiling_with("sleep 60")
    store.request(program(), wait=False)
    assert store._running is not None
    assert store.kept(hashlib.sha256(program().encode()).hexdigest()) is None

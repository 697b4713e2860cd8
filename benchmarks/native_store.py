"""What it takes to get a compiled program: a miss, waiting for the compiler, a program that is kept, a loaded one.

    python benchmarks/native_store.py                       # 2,000 statements
    python benchmarks/native_store.py --statements 200 --repeats 50

No data sets. Programs are kept in a temporary folder; the compiler is the one that mslsq would use (CXX names another).
Every request but the last is that of a new store, as in a new process whose modules are imported.
"""

import argparse
import os
import random
import shlex
import tempfile
import time
from statistics import median

from timing import print_machine, print_table

from mslsq.kernels.build import compiler
from mslsq.native.processor import VECTOR_BYTES, target
from mslsq.native.store import Build, Store

INPUTS, OUTPUTS = 26, 80
"""As a relative pose with its measurement has, and its residual with two Jacobians, nearly."""

HEAD = """
typedef double lanes __attribute__((vector_size({width}), aligned(8), may_alias));
extern "C" __attribute__((visibility("default"))) void program(long count, const double *in, double *out) {{
  for (long block = 0; block < count; block += {width} / 8) {{
"""


def program(statements: int, number: int) -> str:
    """A program of random sums and products over vectors of blocks; another one for every number."""
    generator = random.Random(0)
    lines = [f"const lanes v{k} = *(const lanes *)(in + {k} * count + block);" for k in range(INPUTS)]
    for k in range(INPUTS, INPUTS + statements):
        a, b, c = (generator.randrange(max(0, k - 120), k) for _ in range(3))
        lines.append(f"const lanes v{k} = {generator.choice((f'v{a} * v{b}', f'v{a} - v{b}', f'v{a} * v{b} + v{c}'))};")
    last = INPUTS + statements - 1
    lines += [f"*(lanes *)(out + {k} * count + block) = v{last - k};" for k in range(min(OUTPUTS, statements))]
    return HEAD.format(width=VECTOR_BYTES[target()]) + "\n".join(lines) + f"\n}} }}\n// {number}\n"


def timed(store: Store, source: str, wait: bool) -> tuple[Build, float, float]:
    """A build, with the wall and processor milliseconds of this process that its request took."""
    wall, cpu = time.perf_counter(), time.process_time()
    build = store.request(source, wait=wait)
    return build, 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def measured(statements: int, repeats: int) -> list[list[object]]:
    """Rows of the table: medians."""
    taken: dict[str, list[tuple[float, float]]] = {}
    for number in range(repeats):
        source = program(statements, number)
        missing, waiting, finding = Store(), Store(), Store()
        steps = [("a miss, until the compiler works", missing, False)]
        steps += [("a miss, until the compiler is done", waiting, True)]
        steps += [("kept: checked and loaded", finding, False), ("loaded already", finding, False)]
        for name, store, wait in steps:
            build, *times = timed(store, source, wait)
            if store is finding and build.library() is None:
                raise RuntimeError(build.sentence())
            if store is missing:
                store.close()
            taken.setdefault(name, []).append((times[0], times[1]))
    return [[name, *(median(column) for column in zip(*times, strict=True))] for name, times in taken.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statements", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    print_machine(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MSLSQ_CACHE_DIR"] = folder
        print_table(
            f"### A program of {arguments.statements} statements, {shlex.join(compiler())}, for {target()} (medians)",
            ["request", "wall ms", "CPU ms of this process"],
            measured(arguments.statements, arguments.repeats),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Alignment against known truth: a hundred random pairs of real rasters, twenty per model, errors and times in one
table.

    python benchmarks/alignment.py                 # all hundred, 256²
    python benchmarks/alignment.py --per-model 3   # a smaller part

Shift ±20 px, rotation ±10°, scale 0.9 to 1.1, shear ±0.05, perspective ±5 %, gain 0.7 to 1.3, bias ±0.15, noise 1 % on
both maps. The error is the mean distance of the reference's four corners from where the truth puts them.
"""

import argparse
import json
import sys
import time

import numpy as np
import torch

from mslsq.alignment import MapStatus, align
from mslsq.alignment.measures import corner_error
from mslsq.alignment.synthetic import MODELS, benchmark_pairs


def main() -> int:
    parser = argparse.ArgumentParser(description="Alignment of random pairs with known truth.")
    parser.add_argument("--per-model", type=int, default=20)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write every pair's result here")
    parser.add_argument("--gate", type=float, default=0.0, help="fail unless this share ends below 0.1 px (0.95, say)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    records = []
    for model, pair in benchmark_pairs(arguments.per_model, arguments.size):
        if model not in arguments.models:
            continue
        begin = time.perf_counter()
        result = align([pair.reference, pair.moving], model=model)
        seconds = time.perf_counter() - begin
        error = corner_error(result.transforms[1], pair.transform, *pair.reference.shape)
        start = corner_error(torch.eye(3, dtype=torch.float64), pair.transform, *pair.reference.shape)
        status = MapStatus(int(result.status[1])).name.lower()
        sigma = float(result.corner_sigma[1])
        records.append(
            {"pair": pair.name, "model": model, "error": error, "start": start, "seconds": seconds, "status": status}
            | {"corner_sigma": sigma, "ncc": float(result.ncc[1]), "overlap": float(result.overlap[1])}
        )
        line = f"{pair.name:32s} {start:7.2f} px → {error:8.4f} px (± {sigma:.4f})"
        print(f"{line}  {seconds:5.2f} s  {status}", flush=True)

    print()
    timing = f"s per pair ({arguments.threads} thread)"
    print(f"| model | pairs | start px | median px | 90 % px | < 1 px | < 0.1 px | {timing} |")
    print("|---|---|---|---|---|---|---|---|")
    for model in [*arguments.models, "all"]:
        chosen = [record for record in records if model in (record["model"], "all")]
        errors = np.array([record["error"] for record in chosen])
        seconds = np.median([record["seconds"] for record in chosen])
        start, ninety = np.median([r["start"] for r in chosen]), np.quantile(errors, 0.9, method="higher")
        shares = f"{(errors < 1).mean():.0%} | {(errors < 0.1).mean():.0%}"
        middle = np.median(errors)
        print(f"| {model} | {len(chosen)} | {start:.1f} | {middle:.4f} | {ninety:.4f} | {shares} | {seconds:.2f} |")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)
    good = float(np.mean([record["error"] < 0.1 for record in records]))
    return 0 if good >= arguments.gate else 1


if __name__ == "__main__":
    sys.exit(main())

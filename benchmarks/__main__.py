"""`make bench`: what bedl costs, printed as tables and written to a JSON file.

All ratios are measured in one process, interleaved, medians of 15 or more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch

from bedl import _kernels
from benchmarks import (
    agreement,
    head,
    memory,
    passes,
    peers,
    plot,
    processes,
    profile,
    replicas,
    scale,
    structure,
    tables,
)

Section = Callable[[argparse.Namespace], dict[str, Any]]


def bench_passes(options: argparse.Namespace) -> dict[str, Any]:
    """Prediction and training steps, over those of the deterministic network, uncompiled."""
    results = {}
    for case in passes.CASES:
        for count in options.threads:
            name = f"{case[0]}, batch {case[1]}, {count} thread(s)"
            results[name] = passes.measure(case, options.repeats, count, not options.uncompiled)
            _table({name: results[name]}, "× plain")
    return results


def bench_profile(options: argparse.Namespace) -> dict[str, Any]:
    """Where the time of a compiled training step goes, one thread."""
    return {f"{name}, batch {batch}": profile.measure(name, batch) for name, batch in passes.CASES[1:4]}


def bench_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a training step over the deterministic network's."""
    return {f"{name}, batch {batch}": memory.measure(name, batch) for name, batch in passes.CASES}


def bench_head(options: argparse.Namespace) -> dict[str, Any]:
    """Dirichlet head of 10 classes, likelihood and PAC term, forward and backward."""
    return head.measure(repeats=options.repeats)


def bench_replicas(options: argparse.Namespace) -> dict[str, Any]:
    """One step of 20 replicas, in steps of one network."""
    return replicas.measure() if _has_data("replicas") else {}


def bench_structure(options: argparse.Namespace) -> dict[str, Any]:
    """What one variance per output, in place of one per weight, does to predictions."""
    return structure.measure() if _has_data("structure") else {}


def _has_data(section: str) -> bool:
    if "BEDL_DATA" in os.environ:
        return True
    print(f"benchmarks: {section} is left out: set BEDL_DATA to a folder with UCI_Datasets and MNIST", file=sys.stderr)
    return False


def bench_tables(options: argparse.Namespace) -> dict[str, Any]:
    """Fits of tables and what is around them, one thread, beside scikit-learn and a loop of one's own."""
    return tables.measure()


def bench_peers(options: argparse.Namespace) -> dict[str, Any]:
    """Prediction with uncertainty, LeNet-5, batch 100, over the deterministic network's."""
    return peers.measure(repeats=options.repeats)


def bench_scale(options: argparse.Namespace) -> dict[str, Any]:
    """Microseconds per point, by size."""
    curves = scale.measure()
    if options.plot:
        with open(options.plot, "w", encoding="utf-8") as file:
            file.write(plot.small_multiples(curves, "µs per point"))
    return curves


def bench_processes(options: argparse.Namespace) -> dict[str, Any]:
    """Throughput of two processes with one thread each over that of one, CIFAR network."""
    return processes.measure()


def bench_agreement(options: argparse.Namespace) -> dict[str, Any]:
    """Largest difference between onnxruntime and eager PyTorch, 10,000 points."""
    return agreement.measure()


SECTIONS: dict[str, Section] = {
    "passes": bench_passes,
    "profile": bench_profile,
    "memory": bench_memory,
    "head": bench_head,
    "replicas": bench_replicas,
    "tables": bench_tables,
    "peers": bench_peers,
    "structure": bench_structure,
    "scale": bench_scale,
    "processes": bench_processes,
    "agreement": bench_agreement,
}


def _table(results: dict[str, Any], unit: str = "") -> None:
    for name, value in results.items():
        if isinstance(value, dict):
            print(f"| {name} | {unit} |\n| --- | --- |")
            _table(value)
            print()
        else:
            print(f"| {name} | {value:{'.2f' if abs(value) >= 0.01 else '.1e'}} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--uncompiled", action="store_true", help="leave compiled runs out of 'passes': quick")
    parser.add_argument("--out", default="benchmarks.json", help="what the results are written to")
    parser.add_argument("--plot", help="a file for the picture of section 'scale', as SVG")
    options = parser.parse_args()
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    results: dict[str, Any] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    results["kernels"] = _kernels.is_built()
    print("kernels in C:", "in use" if results["kernels"] else "not in use")
    for name in options.sections or SECTIONS:
        print(f"\n{SECTIONS[name].__doc__}\n", flush=True)
        results[name] = SECTIONS[name](options)
        if name != "passes":
            _table(results[name])
        with open(f"{options.out}.part", "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)
        os.replace(f"{options.out}.part", options.out)
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()

"""`make bench`: ratios measured in one process, interleaved, medians. Needs BEDL_DATA with UCI_Datasets/concrete."""

from __future__ import annotations

import os
import sys

from benchmarks import replicas

if __name__ == "__main__":
    if "BEDL_DATA" not in os.environ:
        sys.exit("benchmarks: set BEDL_DATA to a folder with UCI_Datasets/concrete")
    print("| 20 replicas, cost of a step | × one net |\n| --- | --- |")
    for name, ratio in replicas.measure().items():
        print(f"| {name} | {ratio:.2f} |")

"""Hostile input over every entry point: ``python tests/fuzz/run.py --cases 100000``.

Prints how many cases came out how and every kind of unexpected outcome with the number
of a case that shows it; exits with 1 if there is any. `--start N --cases 1` repeats
case N.
"""

import argparse
import contextlib
import importlib
import logging
import resource
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fuzz_engine import Report, run_cases
from fuzz_entries import ENTRIES

# What no case needs; a bomb that gets through ends in MemoryError, which is a finding.
MEMORY = 6 << 30


def preload():
    """Import what is large before any case: a limit must not cut an import short."""
    for name in ("torch", "matplotlib.pyplot", "sklearn.manifold", "PIL.Image",
                 "scipy.io", "skfedcal.training", "skfedcal.experiments"):  # fmt: skip
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(start, stop, seed, only=None):
    """Run some cases in this process."""
    logging.disable(logging.CRITICAL)  # sites write down what they refuse
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, limit[1]))
    with tempfile.TemporaryDirectory() as folder:
        return run_cases(ENTRIES, range(start, stop), folder, seed, only)


def main():
    """Parse the command line, run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", help="entry points whose name has this text")
    args = parser.parse_args()
    stop = args.start + args.cases
    step = max(1, min(1000, args.cases // args.jobs))
    report = Report()
    preload()
    # A fork has the modules already.
    with ProcessPoolExecutor(args.jobs, get_context("fork")) as pool:
        jobs = [
            pool.submit(run, first, min(first + step, stop), args.seed, args.only)
            for first in range(args.start, stop, step)
        ]
        for job in jobs:
            part = job.result()
            for finding in part.findings:
                print(finding, file=sys.stderr, flush=True)  # noqa: T201
            report += part
    print(report.table())  # noqa: T201
    print(report)  # noqa: T201
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())

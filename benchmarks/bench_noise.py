"""Time per value of integer noise, against opendp's exact samplers.

Run ``python benchmarks/bench_noise.py [--json FILE] [--n 256000]``.
"""

import argparse
import json
import platform
import time

import numpy as np

from skfedcal.privacy import _samplers
from skfedcal.privacy._entropy import OSEntropy, SeededEntropy
from skfedcal.privacy._samplers import (
    GAUSSIAN_BASE_SIGMA,
    GAUSSIAN_SIGMA,
    LAPLACE_SCALE,
    discrete_gaussian,
    discrete_gaussian_base,
    discrete_laplace,
)

# opendp is slow: fewer values, the same time per value.
N_OPENDP = 20_000


def microseconds(draw, n, repeats):
    """Return the best time per value."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        draw(n)
        times.append(time.perf_counter() - start)
    return min(times) / n * 1e6


def opendp_sampler(kind, scale):
    """Return opendp's sampler on integers, or None without opendp."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "gaussian":
        mechanism = (domain, dp.l2_distance(T="i64")) >> dp.m.then_gaussian(scale)
    else:
        mechanism = (domain, dp.l1_distance(T="i64")) >> dp.m.then_laplace(scale)
    return lambda n: mechanism([0] * n)


def first_use():
    """Return the time to build each table, in ms."""
    builders = {
        "gaussian": _samplers._gaussian_table,
        "laplace": lambda: _samplers._geometric_tables(float(LAPLACE_SCALE)),
    }
    _samplers._gaussian_table.cache_clear()
    _samplers._geometric_tables.cache_clear()
    times = {}
    for name, build in builders.items():
        start = time.perf_counter()
        build()
        times[name] = (time.perf_counter() - start) * 1e3
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--n", type=int, default=256_000, help="values per draw")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()

    tables = first_use()
    laws = {
        "gaussian": (discrete_gaussian, "gaussian", GAUSSIAN_SIGMA),
        "gaussian base": (discrete_gaussian_base, "gaussian", GAUSSIAN_BASE_SIGMA),
        "laplace": (
            lambda n, entropy: discrete_laplace(n, LAPLACE_SCALE, entropy),
            "laplace",
            LAPLACE_SCALE,
        ),
    }
    rows = []
    for name, (draw, kind, scale) in laws.items():
        row = {"law": name, "scale": float(scale)}
        for entropy in (OSEntropy(), SeededEntropy(0)):
            label = "os" if entropy.secure else "seeded"
            row[f"{label}_us"] = microseconds(
                lambda n, draw=draw, entropy=entropy: draw(n, entropy),
                args.n,
                args.repeats,
            )
        theirs = opendp_sampler(kind, float(scale))
        row["opendp_us"] = theirs and microseconds(theirs, N_OPENDP, 3)
        row["opendp_over_os"] = theirs and row["opendp_us"] / row["os_us"]
        rows.append(row)

    print(f"us per value, n={args.n}")
    columns = ["os_us", "seeded_us", "opendp_us", "opendp_over_os"]
    print(f"{'law':<14}" + "".join(f"{column:>16}" for column in columns))
    for row in rows:
        cells = ("-" if row[c] is None else f"{row[c]:.3f}" for c in columns)
        print(f"{row['law']:<14}" + "".join(f"{cell:>16}" for cell in cells))
    print("tables, ms: " + ", ".join(f"{k} {v:.1f}" for k, v in tables.items()))
    if args.json:
        result = {
            "benchmark": "noise",
            "n": args.n,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "table_ms": tables,
            "rows": rows,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()

"""Time per value of integer noise, next to the exact samplers of opendp."""

import time
from collections.abc import Callable
from functools import partial

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    arguments,
    cpu_best,
    optional,
    print_table,
    write_json,
)

from skfedcal.privacy import samplers
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.samplers import (
    GAUSSIAN_BASE_SIGMA,
    GAUSSIAN_SIGMA,
    LAPLACE_SCALE,
    discrete_gaussian,
    discrete_gaussian_base,
    discrete_laplace,
)

# opendp takes a long time: fewer values, counted per value.
N_OPENDP = 20_000

Draw = Callable[[int], object]


def opendp_sampler(kind: str, scale: float) -> Draw | None:
    """Return opendp's sampler on integers, or None without opendp."""
    dp = optional("opendp.prelude")
    if dp is None:
        return None
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "laplace":
        mechanism = (domain, dp.l1_distance(T="i64")) >> dp.m.then_laplace(scale)
    else:
        mechanism = (domain, dp.l2_distance(T="i64")) >> dp.m.then_gaussian(scale)
    return lambda n: mechanism([0] * n)


def table_seconds() -> dict[str, float]:
    """Return the time that the first draw of each law spends on its tables."""
    builders = {
        "gaussian": samplers._gaussian_table,
        "laplace": partial(samplers.geometric_tables, float(LAPLACE_SCALE)),
    }
    samplers._gaussian_table.cache_clear()
    samplers.geometric_tables.cache_clear()
    times = {}
    for name, build in builders.items():
        start = time.perf_counter()
        build()
        times[name] = time.perf_counter() - start
    return times


def measure(law: str, scale: float, n: int, seconds: float) -> dict[str, object]:
    """Return microseconds per value of one law."""
    draws = {
        "gaussian": discrete_gaussian,
        "gaussian base": discrete_gaussian_base,
        "laplace": lambda n, entropy: discrete_laplace(n, scale, entropy),
    }
    calls: dict[str, Callable[[], object]] = {
        "os": partial(draws[law], n, OSEntropy()),
        "seeded": partial(draws[law], n, SeededEntropy(0)),
    }
    sizes = {"os": n, "seeded": n, "opendp": N_OPENDP}
    if theirs := opendp_sampler(law, scale):
        calls["opendp"] = partial(theirs, N_OPENDP)
    best = cpu_best(calls, seconds=seconds)
    row: dict[str, object] = {"law": law, "scale": scale, "n": n}
    row |= {f"{name} us": best[name] / sizes[name] * 1e6 for name in best}
    if theirs:
        row["opendp/os"] = best["opendp"] / N_OPENDP / (best["os"] / n)
    return row


def main() -> None:
    """Measure, print and write."""
    parser = arguments("noise", __doc__)
    parser.add_argument("--n", type=int, default=256_000, help="values per draw")
    options = parser.parse_args()
    tables = table_seconds()
    laws = {
        "gaussian": GAUSSIAN_SIGMA,
        "gaussian base": float(GAUSSIAN_BASE_SIGMA),
        "laplace": float(LAPLACE_SCALE),
    }
    rows = [
        measure(law, scale, options.n, options.seconds) for law, scale in laws.items()
    ]
    print_table(rows)
    for name, value in tables.items():
        print(f"tables of the {name} law: {value * 1e3:.1f} ms")
    first = [{"law": name, "table ms": value * 1e3} for name, value in tables.items()]
    write_json(options.out, [*rows, *first])


if __name__ == "__main__":
    main()

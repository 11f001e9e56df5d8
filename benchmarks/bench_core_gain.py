"""What the compiled core gains over numpy, and whether its bits depend on numpy's.

python -m benchmarks.bench_core_gain

Whole temperature fits and predictions with the core and with numpy alone, each with all
instructions of the processor and without AVX-512, in processes of their own. The bits
of other exact fits are compared between numpy with AVX-512 and without it.
"""

import hashlib
import json
import os
import subprocess
import sys
import warnings
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    arguments,
    cpu_best,
    make_logits,
    print_table,
    write_json,
)

import numpy as np

import skfedcal
from skfedcal import FedTempCalibrator, _compiled

SIZES = ((100, 10), (10_000, 10), (10_000, 100), (50_000, 1000))
METHODS = (
    *("Temp", "BiasTemp", "Vector", "Matrix", "OPVector", "OneVsRest", "Bin", "BBQ"),
    *("Histogram", "TopBin", "AccTemp", "Shape"),
)
# Core and whether numpy has AVX-512.
KINDS = {
    "numpy, AVX2": ("off", False),
    "core, AVX2": ("avx2", False),
    "numpy, AVX-512": ("off", True),
    "core, AVX-512": ("avx512", True),
}


def times(seconds: float) -> dict[str, float]:
    """Microseconds of each call in this process."""
    found = {}
    for n_rows, n_classes in SIZES:
        for dtype in (np.float32, np.float64):
            X, y = make_logits(n_rows, n_classes, dtype)
            fitted = FedTempCalibrator().fit(X, y)
            best = cpu_best(
                {
                    "fit": lambda X=X, y=y: FedTempCalibrator().fit(X, y),
                    "predict_proba": lambda X=X, c=fitted: c.predict_proba(X),
                },
                seconds=seconds,
            )
            case = f"{n_rows:,} x {n_classes}, {np.dtype(dtype).name}"
            found |= {f"{call}, {case}": 1e6 * best[call] for call in best}
    return found


def bits() -> dict[str, list[str]]:
    """Hashes of what exact fits release, and of their predictions."""
    fed = skfedcal.make_federation(50, 4000, dtype=np.float64, random_state=0)
    found = {}
    for name in METHODS:
        fitted = getattr(skfedcal, f"Fed{name}Calibrator")().fit(fed.clients)
        released = [v for record in fitted.history_ for v in record.total.values()]
        proba = fitted.predict_proba(fed.test_logits)
        found[name] = [digest(released), digest([proba])]
    return found


def digest(arrays: list[Any]) -> str:
    """Hash of the numbers of some arrays."""
    parts = [np.ascontiguousarray(a, dtype=float).tobytes() for a in arrays]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def child(core: str, avx512: bool, seconds: float) -> dict[str, Any]:
    """What a process with this core and numpy finds."""
    env = {**os.environ, "SKFEDCAL_CORE": core}
    if not avx512:
        dispatched = np._core._multiarray_umath.__cpu_dispatch__
        wide = [f for f in dispatched if f.startswith("AVX512") or f == "X86_V4"]
        env["NPY_DISABLE_CPU_FEATURES"] = " ".join(wide)
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_core_gain"]
    words += ["--child", "--seconds", str(seconds)]
    ended = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def main() -> None:
    """Print and write the table, or answer as one of the processes."""
    parser = arguments("core_gain", __doc__)
    parser.add_argument("--child", action="store_true", help="for its own processes")
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        print(json.dumps({"times": times(options.seconds), "bits": bits()}))
        return
    if "avx512" not in _compiled.levels():
        parser.error("needs the compiled core and a processor with AVX-512")
    found = {name: child(*kind, options.seconds) for name, kind in KINDS.items()}
    rows: list[dict[str, Any]] = []
    for case in found["core, AVX2"]["times"]:
        row = {name: part["times"][case] for name, part in found.items()}
        gains = {
            f"gain, {level}": row[f"numpy, {level}"] / row[f"core, {level}"]
            for level in ("AVX2", "AVX-512")
        }
        rows.append({"call": case, **row, **gains})
    print_table(rows)
    narrow, wide = (found[f"core, {level}"]["bits"] for level in ("AVX2", "AVX-512"))
    same = [
        {"method": name, "released": a == c, "probabilities": b == d}
        for name, (a, b) in narrow.items()
        for c, d in [wide[name]]
    ]
    print_table(same)
    write_json(options.out, [*rows, *same])


if __name__ == "__main__":
    main()

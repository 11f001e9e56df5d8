"""Write what the tests of this folder compare with. See README.md before use.

Run from the root of the repository::

    python tests/frozen/record.py released fitted api files wire
    python tests/frozen/record.py new         # released sums of cases without a record
    python tests/frozen/record.py --kernel    # hashes of all bits on this processor
    python tests/frozen/record.py --core      # the same of the compiled core, anywhere
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import frozen_cases as cases
import frozen_kernel

HERE = Path(__file__).parent
# Relative changes of rows that must not change a rounded hash: far beyond last bits.
WIGGLES = (1e-12, -1e-12, 1e-13, -1e-13, 1e-11)
# Bits of reals that are left out of a rounded hash; a real is sent in steps of 2**-40.
DROPS = (0, 8, 16, 24, 30, 34)
# These send their rows to the last bit, which is exact arithmetic on every processor.
EXACT_ROWS = ("gaussian head", "scores, as given")


def write(name, content):
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (HERE / name).write_text(text, encoding="utf-8")
    print(f"{name}: {len(content)} entries, {len(text)} bytes")  # noqa: T201


def record_released(known=None):
    found = dict(known or {})
    names = [name for name in cases.CASES if name not in found]
    for name in names:
        seen = cases.run_case(name)
        if seen.error is not None:
            found[name] = {"refused": type(seen.error).__name__}
            continue
        drop = _stable(name, seen)
        found[name] = {
            **cases.describe(seen),
            "drop": drop,
            "hash": cases.integer_digest(seen, drop),
        }
    write("released.json", found)
    record_kernel(names, fresh=known is None)


def record_new():
    """Add cases that have no record; what is recorded stays as it is."""
    record_released(json.loads((HERE / "released.json").read_text()))


def record_kernel(names=tuple(cases.CASES), fresh=False):
    """Add hashes of all bits, as this processor computes them."""
    path = HERE / "released_bits.json"
    known = {} if fresh or not path.exists() else json.loads(path.read_text())
    found = {}
    for name in names:
        seen = cases.run_case(name)
        if seen.error is None:
            found[name] = cases.integer_digest(seen)
    # Only what differs from the rounded record needs a line of its own.
    rounded = json.loads((HERE / "released.json").read_text())
    found = {n: h for n, h in found.items() if h != rounded[n].get("hash")}
    own = known.setdefault(frozen_kernel.kernel(), {})
    known[frozen_kernel.kernel()] = {n: own[n] for n in own if n not in names} | found
    write("released_bits.json", known)


def record_core():
    """Hashes of all bits of what only the compiled core computes, on any processor."""
    from skfedcal._compiled import arithmetic

    if arithmetic() == "numpy":
        raise SystemExit("Build the compiled core first: python setup.py build_ext -i")
    path = HERE / "released_bits.json"
    known = json.loads(path.read_text())
    seen = {name: cases.run_case(name) for name in cases.CASES if cases.in_core(name)}
    known[arithmetic()] = {
        name: cases.integer_digest(found)
        for name, found in seen.items()
        if found.error is None
    }
    write("released_bits.json", known)


def _stable(name, seen):
    """Fewest bits to leave out so that changes of rows by 1e-11 do not show."""
    if name.startswith(EXACT_ROWS):
        return 0
    others = [cases.run_case(name, wiggle=w) for w in WIGGLES]
    for drop in DROPS:
        expected = cases.integer_digest(seen, drop)
        if all(cases.integer_digest(other, drop) == expected for other in others):
            return drop
    raise SystemExit(f"{name}: no rounding is stable; choose other rows.")


def record_fitted():
    import frozen_fitted

    write("fitted.json", frozen_fitted.numbers_found())


def record_api():
    import frozen_api

    write("api.json", frozen_api.call_forms())
    write("api_annotations.json", frozen_api.annotations())
    write("api_cli.json", frozen_api.command_line())


def record_files():
    import frozen_files

    frozen_files.write_all()


def record_wire():
    import frozen_wire

    frozen_wire.write_all()


def record_release():
    import frozen_release

    frozen_release.write_release()


PARTS = {
    "released": record_released,
    "new": record_new,
    "fitted": record_fitted,
    "api": record_api,
    "files": record_files,
    "wire": record_wire,
    "release": record_release,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="part")
    parser.add_argument("--kernel", action="store_true")
    parser.add_argument("--core", action="store_true")
    args = parser.parse_args()
    for part in args.parts:
        PARTS[part]()
    if args.kernel:
        record_kernel()
    if args.core:
        record_core()


if __name__ == "__main__":
    main()

"""Builds the optional compiled core; everything else is in pyproject.toml."""

import sysconfig

from setuptools import Extension, setup

# The stable ABI of 3.11, the first one with buffers: one wheel for all versions. Builds
# without the global lock have no stable ABI.
stable = not sysconfig.get_config_var("Py_GIL_DISABLED")

core = Extension(
    "skfedcal._core",
    ["skfedcal/_core.c"],
    depends=[
        f"skfedcal/_core_{part}.h"
        for part in ("bins", "ids", "level", "math", "proba", "rows", "scaling")
    ],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
    # Bits must not depend on the processor: nothing is contracted or reordered.
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-g0",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-Wno-psabi",
    ],
    py_limited_api=stable,
    optional=True,  # without a compiler the package works in numpy
)

setup(
    ext_modules=[core],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)

"""Does the compiled core give the same bits on aarch64? Run it there, under emulation.

python -m benchmarks.core_on_arm

The core is compiled for aarch64 by clang and runs in an emulated processor, first
function by function, then as the core of whole fits. Every number must equal that of
the installed core to the last bit; the command ends with an error where one does not.
It needs ``pip install ziglang unicorn``.
"""

import argparse
import ast
import struct
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from skfedcal import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedMatrixCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    _compiled,
    federated_calibration_error,
    make_federation,
)

SOURCE = Path(__file__).with_suffix(".c")
SETUP = SOURCE.parents[1] / "setup.py"
# Where things stand in the memory of the emulated processor.
STACK, THREAD, ARGUMENTS, ARRAYS, HEAP = (n << 32 for n in range(1, 6))
SIZES = {STACK: 1 << 23, THREAD: 1 << 16, ARGUMENTS: 1 << 16, ARRAYS: 1 << 28}
SIZES[HEAP] = 1 << 28
STOP = THREAD + 0x8000
NOTHING, WHOLE, REAL_NUMBER, ARRAY = range(4)
CALIBRATORS: tuple[Any, ...] = (
    FedTempCalibrator,
    FedBiasTempCalibrator,
    FedVectorCalibrator,
    FedMatrixCalibrator,
    FedBBQCalibrator,
)


def sections(elf: bytes) -> list[tuple[int, ...]]:
    """Headers of the sections of an ELF file."""
    start = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    return [
        struct.unpack_from("<IIQQQQII", elf, start + i * size) for i in range(count)
    ]


def symbols(elf: bytes) -> dict[str, int | None]:
    """Address of every name in an ELF file, None where it is defined elsewhere."""
    found = {}
    headers = sections(elf)
    for _, kind, _, _, place, size, link, _ in headers:
        if kind != 2:  # table of symbols
            continue
        for at in range(place, place + size, 24):
            name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
            text = headers[link][4] + name
            found[elf[text : elf.index(b"\0", text)].decode()] = (
                value if section else None
            )
    return found


def flags() -> list[str]:
    """Options of the compiler with which setup.py builds the core."""
    for node in ast.walk(ast.parse(SETUP.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "extra_compile_args":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{SETUP} has no extra_compile_args")


def build(folder: Path, target: str) -> bytes:
    """Program of the core for one kind of processor."""
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags()]
    code, stubs, program = folder / "core.o", folder / "stubs.c", folder / "core"
    python = [f"-I{sysconfig.get_path('include')}", "-DPy_LIMITED_API=0x030B0000"]
    subprocess.run([*compiler, *python, "-c", SOURCE, "-o", code], check=True)
    # What only the other functions of the module need of Python.
    missing = [
        name
        for name, address in symbols(code.read_bytes()).items()
        if address is None and name.startswith(("Py", "_Py"))
    ]
    stubs.write_text(
        "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in missing)
        + "const char *call(const char *, const void *, long);\n"
        + 'int main(void) { return !call("", 0, 0); }\n'
    )
    link = ["-static", code, stubs, "-o", program]
    subprocess.run([*compiler, "-g", *link], check=True)
    return program.read_bytes()


class EmulatedCore:
    """The core in an emulated processor: has the functions of `skfedcal._core`."""

    def __init__(self, elf: bytes) -> None:
        unicorn = import_module("unicorn")
        self.registers = import_module("unicorn.arm64_const")
        self.names = symbols(elf)
        self.called: set[str] = set()
        self.processor = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        for start, size in SIZES.items():
            self.processor.mem_map(start, size)
        place, count = (
            struct.unpack_from(f, elf, o)[0] for f, o in (("<Q", 32), ("<H", 56))
        )
        for i in range(count):
            kind, _, offset, address, _, size, memory, _ = struct.unpack_from(
                "<IIQQQQQQ", elf, place + i * 56
            )
            if kind != 1:  # not a part that is loaded
                continue
            low, high = address & -0x1000, (address + memory + 0xFFF) & -0x1000
            self.processor.mem_map(low, high - low)
            self.processor.mem_write(address, elf[offset : offset + size])
        # Vector instructions are off when a processor starts.
        self.register("CPACR_EL1", 3 << 20)
        self.register("TPIDR_EL0", THREAD + 0x1000)
        self.processor.mem_write(self.names["heap"], struct.pack("<Q", HEAP))

    def register(self, name: str, value: int) -> None:
        """Set a register."""
        self.processor.reg_write(getattr(self.registers, f"UC_ARM64_REG_{name}"), value)

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *args: self.call(name, args)

    def levels(self) -> list[str]:
        """Names of the levels of instructions."""
        return ["plain"]

    def call(self, name: str, args: tuple[Any, ...]) -> bool:
        """Run a function; arrays are copied there and back. Returns its truth value."""
        self.called.add(name)
        at, given, arrays = ARRAYS, b"", []
        for value in args:
            if isinstance(value, np.ndarray):
                copy = np.ascontiguousarray(value)
                self.processor.mem_write(at, copy.tobytes())
                given += packed_array(copy, at)
                arrays.append((value, at, copy.nbytes))
                at += -(-copy.nbytes // 64) * 64 + 64
            else:
                given += packed_number(value)
        self.processor.mem_write(ARGUMENTS, given)
        self.processor.mem_write(ARGUMENTS + 0x8000, name.encode() + b"\0")
        for register, value in (
            ("X0", ARGUMENTS + 0x8000),
            ("X1", ARGUMENTS),
            ("X2", len(args)),
            ("LR", STOP),
            ("SP", STACK + SIZES[STACK] - 0x1000),
        ):
            self.register(register, value)
        self.processor.emu_start(self.names["call"], STOP)
        error = self.processor.reg_read(self.registers.UC_ARM64_REG_X0)
        if error:
            text = bytes(self.processor.mem_read(error, 200)).split(b"\0")[0].decode()
            raise ValueError(f"{name}: {text}")
        for value, place, size in arrays:
            if value.flags.writeable:
                found = np.frombuffer(self.processor.mem_read(place, size), value.dtype)
                value[...] = found.reshape(value.shape)
        answer = self.processor.mem_read(self.names["answer"], 8)
        return bool(struct.unpack("<q", answer)[0])


def packed_number(value: object) -> bytes:
    """None or a number, in the layout of core_on_arm.c."""
    if value is None:
        kind, whole, real = NOTHING, 0, 0.0
    elif isinstance(value, int | np.integer | np.bool_):
        # Numbers of 2^63 and above have the bits of one below 0.
        kind, whole, real = WHOLE, (int(value) + (1 << 63)) % (1 << 64) - (1 << 63), 0.0
    else:
        kind, whole, real = REAL_NUMBER, 0, float(value)
    return struct.pack("<qqd", kind, whole, real) + bytes(80)


def packed_array(value: np.ndarray, at: int) -> bytes:
    """An array at an address, in the same layout."""
    shape, strides = ((*given, 0, 0, 0)[:3] for given in (value.shape, value.strides))
    letter = memoryview(value).format.encode()
    numbers = struct.pack("<qqdqqq", ARRAY, 0, 0.0, at, value.itemsize, value.ndim)
    return numbers + struct.pack("<6q8s", *shape, *strides, letter)


@contextmanager
def using(core: Any) -> Iterator[None]:
    """Let the package compute by another core."""
    old, _compiled.core = _compiled.core, core
    try:
        yield
    finally:
        _compiled.core = old


def rows_of(n_classes: int, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits with -inf, ties and gaps of every size; labels; clients."""
    rng = np.random.default_rng(n_classes)
    logits = rng.normal(size=(200, n_classes)) * 10 ** rng.uniform(-3, 2, (200, 1))
    logits[rng.random(logits.shape) < 0.02] = -np.inf
    logits[:, 0] = rng.normal(size=200)
    logits[::7] = 1.0
    labels = rng.integers(0, n_classes, 200)
    labels[~np.isfinite(logits[np.arange(200), labels])] = 0
    return logits.astype(dtype), labels, np.repeat(np.arange(8), 25)


def functions(core: Any) -> dict[str, list[np.ndarray]]:
    """What the functions of the core give, by name."""
    rng = np.random.default_rng(0)
    found: dict[str, list[np.ndarray]] = {"exp, log, log1p, 2^x": []}
    for kind, (low, high, dtype) in enumerate(
        [
            (-1030, 1020, np.float64),
            (-130, 126, np.float32),
            (1e-300, 1e300, np.float64),
            (0, 1e4, np.float64),
            (-720, 708, np.float64),
            (-90, 87, np.float32),
        ]
    ):
        values = rng.uniform(low, high, 20_000).astype(dtype)
        out = np.empty_like(values)
        core.map(kind, values, out)
        found["exp, log, log1p, 2^x"].append(out)
    for n_classes in (2, 3, 10, 17, 48, 49, 100, 130):
        for dtype in (np.float32, np.float64):
            logits, labels, _ = rows_of(n_classes, dtype)
            for logs in (False, True):
                out = np.empty_like(logits)
                core.softmax(logits, out, 0.7, logs)
                found.setdefault("softmax", []).append(out)
            losses = np.empty((4, len(labels)))
            core.scores(logits, None, labels, 0.7, losses)
            found.setdefault("scores of rows", []).append(losses)
            sums_of_rows, used = np.zeros((2, 5)), np.empty((2, 2), np.int64)
            core.derivative_sums(
                logits, None, labels, np.array([0, 90, 200]), None, 0.7, 1, False, True,
                sums_of_rows, used,
            )  # fmt: skip
            found.setdefault("derivatives", []).append(sums_of_rows)
            proba = np.empty_like(logits)
            core.softmax(logits, proba, 1.0, False)
            found.setdefault("sums of metrics", []).extend(sums(core, proba, labels))
            given = rng.normal(size=(8, n_classes))
            curves = np.zeros((2, 6, n_classes))
            whole = np.array([0, 90, 200])
            core.platt_sums(logits, None, labels, whole, None, 0, given, curves)
            found.setdefault("sums of sigmoids", []).append(curves)
            limbs = np.zeros((3, n_classes), np.int64)
            core.limb_sum(logits, 2.0**50, limbs)
            found.setdefault("sums in fixed point", []).append(limbs)
    marks = np.zeros(200, np.bool_)
    core.held_marks(np.array([0, 90, 200]), np.array([3, -5]), 1, 1 << 63, marks)
    found["rows that are held back"] = [marks]
    return found


def sums(core: Any, proba: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """What metrics add up over rows of probabilities."""
    n_rows, n_classes = proba.shape
    top, value = np.empty(n_rows, np.int64), np.empty(n_rows)
    norms, bins = np.empty(n_rows), np.zeros((3, 15))
    gaps, columns = np.zeros((n_classes, 16)), np.empty(n_classes)
    core.valid_rows(proba, 1e-3)
    core.top_labels(proba, top, value)
    core.squares(proba, norms)
    core.bin_sums(value, top == labels, None, bins)
    core.class_gaps(proba, labels, 15, 1e-3, gaps, columns)
    return [top, value, norms, bins, gaps, columns]


def fits() -> dict[str, list[np.ndarray]]:
    """Probabilities of whole fits, and errors, with the core that is in use."""
    found: dict[str, list[np.ndarray]] = {}
    for n_classes in (3, 20):
        for dtype in (np.float32, np.float64):
            data = make_federation(
                20, 600, n_classes, n_test=200, dtype=dtype, random_state=0
            )
            for eps in (None, 1.0):
                for kind in CALIBRATORS:
                    calibrator = kind(eps=eps, random_state=0)
                    calibrator.fit(data.clients)
                    name = kind.__name__ + ("" if eps is None else f"(eps={eps:g})")
                    proba = calibrator.predict_proba(data.test_logits)
                    found.setdefault(name, []).append(proba)
            error = federated_calibration_error(data.clients, kind="classwise")
            found.setdefault("cwECE", []).append(np.array([error.value]))
    return found


def differences(ours: Any, theirs: Any) -> int:
    """Print in how many numbers two results differ, and return how many."""
    total = 0
    for name, arrays in ours.items():
        pairs = list(zip(arrays, theirs[name], strict=True))
        size = sum(a.size for a, _ in pairs)
        off = sum(
            int((a.tobytes() != b.tobytes()) and np.sum(a != b)) for a, b in pairs
        )
        print(f"  {name:<34}{size:>9,} numbers, {off} differ", flush=True)
        total += off
    return total


def main() -> None:
    """Compile, run, compare."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core_on_arm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    for package in ("ziglang", "unicorn"):
        if find_spec(package) is None:
            parser.error(f"{package} is missing; pip install ziglang unicorn")
    if _compiled.core is None:
        parser.error("the compiled core is not installed: there is nothing to compare")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        emulated = EmulatedCore(build(Path(folder), "aarch64-linux-musl"))
        own = _compiled.core
        level = _compiled.levels()[0]
        print(f"{_compiled.arithmetic()} at level {level}, and on aarch64:")
        total = differences(functions(own), functions(emulated))
        ours = fits()
        with using(emulated):
            total += differences(ours, fits())
        print("functions that were called there:", ", ".join(sorted(emulated.called)))
    if total:
        raise SystemExit(f"{total} numbers differ")


if __name__ == "__main__":
    main()

"""Walls and directions between packages, read from the imports of every file."""

import ast
import functools
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from skfedcal import FedTempCalibrator, make_federation
from skfedcal.methods.registry import algorithms

ROOT = Path(__file__).resolve().parent.parent / "skfedcal"
# Files whose name says their part in a method; every method has them.
PARTS = {"estimator", "rounds"}
# From below: a package may use those before it. `methods` stands twice, see `level_of`.
LEVELS = [
    {"clients"},
    {"datasets", "contract"},
    {"rounds"},
    {"privacy"},
    {"federation"},
    {"export"},
    {"evaluation"},
    {"estimators"},
    {"training"},
    {"compose"},
    {"metrics"},
    {"plotting"},
    {"experiments"},
    {"papers"},
    {"cli"},
]
# What a site has; masks also need `cryptography`.
SITE = {"numpy", "cryptography", "skfedcal"}


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    name_of(path): path
    for path in sorted(ROOT.rglob("*.py"))
    if "template" not in path.parts
}


# Modules of what sites can be asked to compute.
ROUNDS = {entry.path.partition(":")[0] for entry in algorithms().values()}


def is_package(name):
    return FILES[name].name == "__init__.py"


def blocks(node, checking=False):
    """All nodes, and whether only type checkers read them."""
    for child in ast.iter_child_nodes(node):
        test = ast.unparse(child.test) if isinstance(child, ast.If) else ""
        inside = checking or "TYPE_CHECKING" in test
        yield child, inside
        yield from blocks(child, inside)


@functools.cache
def imports_of(name):
    """(module, only for type checkers) of all imports, also of those in functions."""
    found = set()
    for node, checking in blocks(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, checking) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add((inner if inner in FILES else node.module, checking))
    return frozenset(found)


def internal(name):
    return {t for t, _ in imports_of(name) if t.split(".")[0] == "skfedcal"}


def test_imports_are_found():
    assert len(FILES) > 100
    assert "skfedcal.contract" in internal("skfedcal.methods.temperature.rounds")


@pytest.mark.parametrize("name", FILES)
def test_a_private_file_is_used_by_its_own_package_only(name):
    for target in internal(name):
        parts = target.split(".")
        for i, part in enumerate(parts):
            if part.startswith("_") and not part.startswith("__"):
                owner = ".".join(parts[:i])
                inside = name == owner or name.startswith(owner + ".")
                assert inside, f"{name} imports {target}, which is private to {owner}"


@pytest.mark.parametrize("name", FILES)
def test_a_private_name_is_used_by_its_own_file_only(name):
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("skfedcal."):
            for alias in node.names:
                private = alias.name.startswith("_") and alias.name != "__version__"
                module = f"{node.module}.{alias.name}" in FILES
                assert module or not private, f"{name}: {node.module}.{alias.name}"


@functools.cache
def below_privacy():
    """Modules of methods that rounds are made of."""
    found = set()
    todo = [m for m in ROUNDS if m.startswith("skfedcal.methods.")]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [t for t in internal(name) if t.startswith("skfedcal.methods.")]
    return found


def level_of(name):
    parts = name.split(".")
    word = parts[1] if len(parts) > 1 else ""
    if name == "skfedcal.methods.registry":
        return 0  # a list of names, which imports nothing
    if word == "methods":
        word = "rounds" if name in below_privacy() else "estimators"
    return next((i for i, level in enumerate(LEVELS) if word in level), None)


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name):
    own = level_of(name)
    if own is None or is_package(name):
        return
    for target, checking in imports_of(name):
        if checking or not target.startswith("skfedcal."):
            continue
        other = level_of(target)
        # A package as a whole is lazy: what counts is which of its names is used.
        if other is None or target == "skfedcal.methods":
            continue
        assert other <= own, f"{name} imports {target}"


def test_every_package_has_a_level_or_is_an_old_path():
    packages = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    known = set().union(*LEVELS) | {"methods"}
    assert packages - known == {"algorithms", "calibrators", "data"}


def test_rounds_need_numpy_only():
    seen, todo = set(), sorted(below_privacy())
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for target, checking in imports_of(name):
            first = target.split(".")[0]
            if checking:
                continue
            assert first in SITE or first in sys.stdlib_module_names, (
                f"{name} imports {target}"
            )
            if target in FILES and not is_package(target):
                todo.append(target)


def test_a_method_has_an_estimator_and_rounds():
    folders = [p for p in (ROOT / "methods").iterdir() if (p / "__init__.py").exists()]
    assert len(folders) >= 9
    for folder in folders:
        files = {p.stem for p in folder.glob("*.py")}
        assert "estimator" in files
        # A choice among methods has no rounds of its own.
        assert files >= PARTS or folder.name == "auto"


def test_a_basename_stands_once():
    names = Counter(n.split(".")[-1] for n in FILES if not is_package(n))
    repeated = {n for n, count in names.items() if count > 1} - PARTS
    assert not repeated


def test_files_are_no_fragments():
    modules = [n for n in FILES if not is_package(n)]
    assert len(modules) <= 236
    # A file that one other file imports needs a reason, such as numpy alone at a site.
    importers = Counter(target for n in modules for target in internal(n) - {n})
    single = [n for n in modules if importers[n] == 1]
    lines = [len(FILES[n].read_text(encoding="utf-8").splitlines()) for n in single]
    assert sum(count >= 40 for count in lines) <= 30


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_a_private_fit_is_a_short_walk():
    """Files that a reader opens to follow one fit, and the ways from one to another."""
    fed = make_federation(20, 2000, random_state=0)
    cal = FedTempCalibrator(eps=1, classes=list(range(10)), random_state=0)
    cal.fit(fed.clients)  # tables of noise are computed once
    path = []
    # The package that runs, which may be an installed one.
    top = str(Path(sys.modules["skfedcal"].__file__).parent)

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(top) and path[-1:] != [name]:
            path.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        cal.fit(fed.clients)
    finally:
        sys.setprofile(before)
    assert 10 < len(set(path)) <= 24
    assert len(set(pairwise(path))) <= 80

"""Tasks for development; ``nox --list`` names them, ``nox -s smoke`` runs one.

Each session has an environment of its own. ``.ci/run`` runs the same commands on Linux
in one shared environment, which is faster when several steps follow each other.
"""

import shutil
import tomllib
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
# Test folders that need neither torch nor Flower.
NUMPY_ONLY = ("tests/methods", "tests/compose", "tests/clients", "tests/metrics")


def lower_bounds(extra: str | None = None) -> list[str]:
    """Turn the ``name>=version`` of pyproject.toml into ``name==version``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"]
    if extra is not None:
        listed = project["optional-dependencies"][extra]
    return [entry.split(",")[0].replace(">=", "==") for entry in listed]


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint rules, direction of imports."""
    session.install("-e", ".[lint]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Check type annotations."""
    session.install("-e", ".[test,lint]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the suite with doctests; arguments after ``--`` go to pytest."""
    session.install(".[test]")
    session.run(
        "pytest", "-rfE", "--disable-warnings", *session.posargs, env=ONE_THREAD
    )


@nox.session
def smoke(session: nox.Session) -> None:
    """Run quick tests of every package, in less than a minute on two cores."""
    session.install("-e", ".[test]")
    session.run("pytest", "-q", "-m", "smoke", *session.posargs, env=ONE_THREAD)


@nox.session
def newest(session: nox.Session) -> None:
    """Run the tests of numpy-only packages with the newest versions there are."""
    tools = ("pytest", "pytest-xdist", "hypothesis", "pandas")
    session.install("-e", ".[plot]", *tools)
    session.run("pytest", "-q", *(session.posargs or NUMPY_ONLY), env=ONE_THREAD)


@nox.session
def oldest(session: nox.Session) -> None:
    """Run the tests of numpy-only packages with the oldest versions allowed."""
    session.install(
        "-e",
        ".",
        *lower_bounds(),
        *lower_bounds("plot"),
        "pytest==8.0.0",
        "pytest-xdist==3.6.1",
        "hypothesis==6.100.0",
        "pandas==2.2.2",
    )
    session.run("pytest", "-q", *(session.posargs or NUMPY_ONLY), env=ONE_THREAD)


@nox.session
def slow(session: nox.Session) -> None:
    """Run the long checks in their short form."""
    session.install(".[test]")
    session.run("python", "tests/privacy/kill_ledger.py", "--kills", "200")
    options = ("-q", "--durations=6", "-m", "slow")
    session.run("pytest", *options, "tests", env=ONE_THREAD)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, gallery included; warnings are errors."""
    session.install(".[test,docs]")
    for folder in ("_build", "generated", "auto_examples"):
        shutil.rmtree(ROOT / "docs" / folder, ignore_errors=True)
    options = ("-W", "--keep-going", "-q", "-b", "html")
    session.run("python", "-m", "sphinx", *options, "docs", "docs/_build/html")
    session.run("python", "docs/check_links.py", "docs/_build/html")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel, check their metadata, import the installed wheel."""
    session.install("build", "twine")
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist), ".")
    files = sorted(str(path) for path in dist.iterdir())
    session.run("twine", "check", "--strict", *files)
    session.install(
        "--force-reinstall", *(path for path in files if path.endswith(".whl"))
    )
    session.chdir(dist)
    session.run("skfedcal", "--version")

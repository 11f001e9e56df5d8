"""Workflows, hooks, tasks and citation: they parse and name what exists."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import skfedcal
from skfedcal.cli._main import build_parser

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(
    not (ROOT / ".github").is_dir(), reason="an sdist has no .github"
)


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def ci_steps():
    """Name and body of each step of ``.ci/run``."""
    text = (ROOT / ".ci" / "run").read_text()
    return dict(re.findall(r"^(\w+)\(\)\s*\{(.*)\}$", text, flags=re.MULTILINE))


def nox_sessions():
    """Name and words of each session of the noxfile."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    return {
        node.name: [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def test_workflows_are_found():
    assert {path.stem for path in WORKFLOWS} == {"ci", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_parses_and_names_its_jobs(path):
    workflow = load(path)
    assert workflow["name"]
    # YAML 1.1 reads the key `on` as true.
    assert workflow[True]
    # A token that may write is asked for by the job that needs it.
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["name"]
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "@" in step.get("uses", "@"), "an action needs a version"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_calls_steps_and_sessions_that_exist(path):
    called = 0
    for job in load(path)["jobs"].values():
        for line in "\n".join(commands(job)).splitlines():
            words = shlex.split(line)
            if words[:1] == [".ci/run"]:
                assert set(words[1:]) <= set(ci_steps())
                called += 1
            if words[:2] == ["nox", "-s"]:
                assert set(words[2:]) <= set(nox_sessions())
                called += 1
    assert called or path.stem == "release"


def test_every_step_of_ci_run_is_run_by_a_workflow():
    lines = [c for job in load(WORKFLOWS[0])["jobs"].values() for c in commands(job)]
    words = {word for line in lines for word in line.split()}
    assert set(ci_steps()) <= words


@pytest.mark.parametrize("step", ["lint", "types", "tests", "slow", "docs"])
def test_task_file_runs_the_commands_of_ci_run(step):
    # Programs, modules, files and options of the step stand in the session too. `rm` is
    # shutil there, and pip is the session's own.
    body = re.sub(r"rm -rf [^;]*;|python -m pip install [^&]*&&", "", ci_steps()[step])
    words = set(shlex.split(body.replace("&&", " ").replace(";", " ")))
    assert words
    assert words <= {str(word) for word in nox_sessions()[step]}


def test_supported_versions_are_tested():
    matrix = load(WORKFLOWS[0])["jobs"]["tests"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = {
        c.split(" :: ")[-1] for c in project["classifiers"] if re.search(r":: 3\.\d", c)
    }
    assert set(matrix["python"]) == stated
    assert project["requires-python"] == f">={min(stated)}"
    systems = {entry["os"] for entry in matrix["include"]} | set(matrix["os"])
    assert systems == {"ubuntu-latest", "macos-latest", "windows-latest"}


def test_release_publishes_without_a_stored_token():
    jobs = load(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert "secrets." not in WORKFLOWS[1].read_text()
    assert any("twine check" in line for line in commands(jobs["build"]))


def test_hooks_are_programs_of_the_lint_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {re.split(r"[<>=]", e)[0] for e in project["optional-dependencies"]["lint"]}
    programs = {"lint-imports": "import-linter"}
    hooks = [
        hook
        for repo in load(".pre-commit-config.yaml")["repos"]
        for hook in repo["hooks"]
    ]
    called = {hook["entry"].split()[0] for hook in hooks}
    assert {programs.get(name, name) for name in called} == extra


def test_citation_has_its_required_keys_and_the_version():
    citation = load("CITATION.cff")
    # Required by version 1.2.0 of the Citation File Format.
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["authors"]
    assert citation["version"] == skfedcal.__version__
    assert citation["license"] == "BSD-3-Clause"


def test_one_version_and_one_date():
    version = skfedcal.__version__
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *older = re.findall(r"^## (\S+) \((\S+)\)$", text, flags=re.MULTILINE)
    assert newest == (version, str(load("CITATION.cff")["date-released"]))
    # Dates go down.
    dates = [date for _, date in [newest, *older]]
    assert dates == sorted(dates, reverse=True)


def conda_recipe():
    """The recipe, with the few templates that it has filled in."""
    text = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    (version,) = re.findall(r'{% set version = "(.*)" %}', text)
    text = re.sub(r"{%.*%}\n", "", text).replace("{{ version }}", version)
    text = text.replace("{{ PYTHON }}", "python").replace('{{ compiler("c") }}', "cc")
    assert "{{" not in text
    return yaml.safe_load(text)


def test_the_conda_recipe_has_the_requirements_of_the_project():
    recipe = conda_recipe()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    metadata = project["project"]
    assert recipe["package"] == {"name": "skfedcal", "version": skfedcal.__version__}
    run = {entry.replace(" ", "") for entry in recipe["requirements"]["run"]}
    assert run == {*metadata["dependencies"], f"python{metadata['requires-python']}"}
    host = {entry.replace(" ", "") for entry in recipe["requirements"]["host"]}
    assert {*project["build-system"]["requires"]} <= host
    (entry,) = recipe["build"]["entry_points"]
    name, _, target = entry.partition(" = ")
    assert metadata["scripts"] == {name: target}
    assert recipe["about"]["license"] == metadata["license"]
    assert recipe["about"]["summary"] == metadata["description"]
    for command in recipe["test"]["commands"]:
        program, *words = shlex.split(command)
        parser = build_parser()
        assert program == "skfedcal"
        if words != ["--version"]:
            assert parser.parse_args(words).command.name == words[0]


def test_no_host_is_invented():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "urls" not in metadata  # until there is a public place
    assert "url" not in load("CITATION.cff")


@pytest.mark.parametrize("name", ["bug", "feature", "documentation"])
def test_issue_forms_have_fields_with_labels(name):
    form = load(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_lower_bounds_of_the_noxfile_are_those_of_the_project():
    # The session reads them from pyproject.toml by this rule.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for entry in project["dependencies"]:
        assert re.fullmatch(r"[a-z-]+>=[\d.]+", entry), entry


def test_smoke_tests_exist_and_are_a_part_of_every_package():
    text = (ROOT / "tests" / "conftest.py").read_text()
    tree = ast.parse(text)
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "SMOKE"
    )
    assert [name for name in listed if not (ROOT / "tests" / name).exists()] == []
    packages = {"clients", "privacy", "federation", "methods", "evaluation", "cli"}
    assert packages <= {name.split("/")[0] for name in listed}

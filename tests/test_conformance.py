"""`check_method` passes for registered methods and catches what is wrong in others."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import uniform_mixture
from uniform_mixture.estimator import FedMixtureCalibrator
from uniform_mixture.rounds import MixtureScoring

import skfedcal
from skfedcal import (
    FedShapeCalibrator,
    FedTempCalibrator,
    load,
    make_federation,
    register_method,
    testing,
)
from skfedcal.contract import Field
from skfedcal.federation import SitePolicy
from skfedcal.methods import registry
from skfedcal.methods.registry import Algorithm, Case, Method

TOY = Path(uniform_mixture.__file__).parent
HERE = __name__


@pytest.fixture
def fresh(monkeypatch):
    """A registry whose changes are undone."""
    monkeypatch.setattr(registry, "_ADDED", dict(registry._ADDED))


@pytest.mark.parametrize("method", ["uniform_mixture", "temperature"])
def test_a_method_passes_all_checks(method):
    results = testing.check_method(method)
    names = {result.check for result in results}
    every = (testing.ALWAYS, testing.EXACT_ONLY, testing.PRIVATE_ONLY)
    every += (testing.ALGORITHM_CHECKS,)
    assert names == {check.__name__ for checks in every for check in checks}
    assert {r.outcome for r in results if "export" not in r.check} <= {
        "passed",
        "exempt",
    }
    assert all(result.reason for result in results if result.outcome != "passed")


def test_an_estimator_is_checked_with_its_own_parameters():
    cases = {case for _, case, _ in testing.method_checks(FedMixtureCalibrator(clip=2))}
    assert "FedMixtureCalibrator(clip=2)" in cases
    assert "FedMixtureCalibrator(clip=2, eps=1.0, if_improves=False)" in cases
    with pytest.raises(ValueError, match="not registered; call"):
        list(testing.method_checks("nothing"))


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
def test_no_check_is_passed_by_a_fit_that_asked_nobody():
    quiet = FedTempCalibrator(1.0)
    with pytest.raises(AssertionError, match="asked none of 1 clients: pass a larger"):
        testing.check_sklearn(quiet)
    with pytest.raises(AssertionError, match="asked none of 2 clients"):
        testing.check_batches(quiet)
    # All stages of a map, also of one client.
    shape = testing.asking(FedShapeCalibrator(1.0))
    every = testing.fit(shape, testing.drawn(800, 1))[0].n_rounds_
    assert testing.fit(shape, testing.drawn(1, 30))[0].n_rounds_ == every == 6


def test_the_method_of_the_gallery_is_small():
    files = [path for path in TOY.iterdir() if path.suffix == ".py"]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert len(files) == 3 and lines <= 150


def test_the_method_of_the_gallery_finds_the_optimum():
    from scipy.optimize import minimize
    from scipy.special import expit, softmax

    fed = make_federation(20, 2000, 4, temperature=2.0, n_test=0, random_state=0)
    cal = FedMixtureCalibrator().fit(fed.clients)
    rows, own = fed.logits.astype(float), (np.arange(2000), fed.labels)

    def loss(point):
        p, w = softmax(rows * np.exp(point[0]), axis=1)[own], expit(point[1])
        prior = (point[0] ** 2 + (point[1] + 3) ** 2) / 2
        return prior - np.log((1 - w) * p + w / 4).sum()

    found = minimize(loss, [0.0, -3.0], tol=1e-10).x
    assert cal.temperature_ == pytest.approx(np.exp(-found[0]), rel=1e-3)
    assert cal.weight_ == pytest.approx(expit(found[1]), rel=1e-2)


def test_a_site_needs_numpy_only_for_it():
    code = (
        "import sys, uniform_mixture\n"
        "uniform_mixture.METHOD.own_algorithms[0].load()\n"
        "heavy = 'sklearn', 'scipy', 'joblib', 'torch'\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TOY.parent)!r})\n"
         + code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


# What is wrong is caught.


class Borrowed(MixtureScoring):
    """Sums that depend on how many clients are asked together."""

    def query(self, broadcast, clients):
        out = super().query(broadcast, clients)["slopes"]
        return {"slopes": out * (1 + 1e-9 * len(clients))}


class Crowded(MixtureScoring):
    """Who takes part changes what all others send: no bound on one client."""

    def query(self, broadcast, clients):
        return {"slopes": np.full((len(clients), 5), len(clients) % 2 / 3)}


class AnyBroadcast(MixtureScoring):
    """A site would accept a broadcast of any size."""

    def forms(self, n_classes):
        return tuple({"point": Field(shape)} for shape in ((2,), (2, 2), ()))


class ByOrder(MixtureScoring):
    """Depends on which row comes first."""

    def query(self, broadcast, clients):
        out = super().query(broadcast, clients)["slopes"]
        for block in clients.blocks():
            first = block.offsets[:-1][np.diff(block.offsets) > 0]
            out[block.clients][np.diff(block.offsets) > 0, 1] += block.labels[first]
        return {"slopes": out}


def wrong(rounds, name, base=FedMixtureCalibrator):
    """Estimator class around a wrong algorithm, in this module."""
    algorithm = dataclass(frozen=True)(rounds)

    class Estimator(base):
        def _make_algorithm(self, setting):
            made = super()._make_algorithm(setting)
            return algorithm(made.clip, made.n_rounds)

    Estimator.__doc__ = base.__doc__
    for cls, text in ((Estimator, name), (algorithm, f"{name}Rounds")):
        cls.__module__, cls.__qualname__, cls.__name__ = HERE, text, text
        setattr(sys.modules[HERE], text, cls)
    return Method(
        word=name.lower(),
        estimator=f"{HERE}:{name}",
        algorithms=(
            Algorithm(
                name=f"{name.lower()}.sums/1",
                path=f"{HERE}:{name}Rounds",
                cases=({}, {"clip": 1.0}),
            ),
        ),
        map="uniform_mixture.estimator:mixture",
    )


@pytest.mark.parametrize(
    ("rounds", "check"),
    [
        (Borrowed, "check_own_rows"),
        (Crowded, "check_bounded_contribution"),
        (AnyBroadcast, "check_sites"),
        (ByOrder, "check_client_and_row_order"),
    ],
)
def test_wrong_rounds_are_caught(fresh, rounds, check):
    method = register_method(wrong(rounds, f"Fed{rounds.__name__}Calibrator"))
    failed = set()
    for name, _, run in testing.method_checks(method):
        if name == check or name in ("check_engines", "check_merged_clients"):
            try:
                run()
            except AssertionError:
                failed.add(name)
    assert check in failed


class Forgetful(FedMixtureCalibrator):
    __doc__ = FedMixtureCalibrator.__doc__

    _fitted_names = ("temperature_",)

    def _check_restored(self):
        self.weight_ = 0.5


class OtherMap(FedMixtureCalibrator):
    __doc__ = FedMixtureCalibrator.__doc__

    def _calibrate(self, logits):
        return logits / (2 * self.temperature_)


class Undocumented(FedMixtureCalibrator):
    """Says nothing"""


class Leaky(FedMixtureCalibrator):
    __doc__ = FedMixtureCalibrator.__doc__

    def _make_algorithm(self, setting):
        # The clip follows the data of nobody, but there is none: an infinite bound.
        return replace(super()._make_algorithm(setting), clip=None)


@pytest.mark.parametrize(
    ("cls", "check", "error"),
    [
        (Forgetful, "check_saved_file", AssertionError),
        (OtherMap, "check_export", AssertionError),
        (Undocumented, "check_documented", AssertionError),
        (Leaky, "check_audit", (AssertionError, ValueError)),
    ],
)
def test_wrong_estimators_are_caught(fresh, cls, check, error):
    method = register_method(
        Method(
            word=cls.__name__.lower(),
            estimator=f"{HERE}:{cls.__name__}",
            algorithms=("uniform_mixture.scoring/1",),
            map="uniform_mixture.estimator:mixture",
        )
    )
    runs = [run for name, _, run in testing.method_checks(method) if name == check]
    assert runs
    with pytest.raises(error):
        [run() for run in runs]


def test_a_failure_names_check_and_case(fresh):
    method = Method(
        word="undocumented",
        estimator=f"{HERE}:Undocumented",
        algorithms=("uniform_mixture.scoring/1",),
    )
    register_method(method)
    with pytest.raises(AssertionError) as caught:
        testing.check_method(method)
    assert caught.value.__notes__ == ["check_documented failed for Undocumented()."]


def test_exemptions_are_reported(fresh):
    method = replace(
        uniform_mixture.METHOD, exempt={"check_documented": "for this test"}
    )
    checks = {name: run for name, _, run in testing.method_checks(method)}
    assert checks["check_documented"]() == "for this test"


# Registration.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"word": "temperature"}, "word 'temperature' is taken"),
        ({"word": "Mixture"}, "word='Mixture' of a method must look like"),
        ({"word": "other"}, "'FedMixtureCalibrator' is taken"),
        ({"estimator": "no path"}, "estimator='no path'"),
        ({"command": "temp"}, "word 'temp' is taken"),
        ({"algorithms": ("nothing/1",)}, "algorithm 'nothing/1', which is not"),
        ({"algorithms": (Algorithm(name="bins.counts/1", path="a:B"),)}, "is taken"),
        ({"algorithms": (Algorithm(name="x", path="a:B"),)}, "name='x'"),
        ({"algorithms": (Algorithm(name="x.y/1", path="os"),)}, "path='os'"),
    ],
)
def test_wrong_entries_are_refused(fresh, change, words):
    base = {"word": "other", "estimator": "other.module:Other"}
    if "word" in change:
        base["estimator"] = uniform_mixture.METHOD.estimator
    with pytest.raises(ValueError, match=words):
        register_method(Method(**{**base, **change}))
    with pytest.raises(TypeError, match="pass a Method"):
        register_method(FedTempCalibrator)


def test_the_same_entry_may_be_registered_again():
    before = registry.methods()
    assert register_method(uniform_mixture.METHOD) is uniform_mixture.METHOD
    assert registry.methods() == before


def test_methods_of_installed_packages_are_found(fresh, monkeypatch):
    added = replace(
        uniform_mixture.METHOD, word="installed", estimator="a.b:Installed",
        algorithms=("uniform_mixture.scoring/1",),
    )  # fmt: skip
    monkeypatch.setattr(uniform_mixture, "ADDED", added, raising=False)
    points = [
        EntryPoint("good", "uniform_mixture:ADDED", registry.GROUP),
        EntryPoint("broken", "no_such_package:METHOD", registry.GROUP),
        EntryPoint("odd", "uniform_mixture:Method", registry.GROUP),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    registry._discover.cache_clear()
    with pytest.warns(UserWarning, match="is not available") as caught:
        assert "installed" in [method.word for method in registry.methods()]
    assert ["'broken'" in str(w.message) for w in caught] == [True, False]
    assert "'odd' (uniform_mixture:Method)" in str(caught[1].message)


def test_a_registered_method_is_known_everywhere(tmp_path, fresh):
    from skfedcal.experiments.comparison.engine import named_methods

    fed = make_federation(6, 300, 3, n_test=0, random_state=0)
    path = tmp_path / "cal.json"
    FedMixtureCalibrator().fit(fed.clients).save(path)
    assert json.loads(path.read_text())["estimator"] == "FedMixtureCalibrator"
    assert type(load(path)) is FedMixtureCalibrator
    assert type(named_methods(["FedMixture"])["FedMixture"]) is FedMixtureCalibrator
    assert SitePolicy(methods=("uniform-mixture",)).methods == ("uniform-mixture",)
    assert "FedMixtureCalibrator" not in skfedcal.__all__


def test_type_checkers_see_the_names_of_the_registry():
    import ast

    tree = ast.parse(Path(skfedcal.methods.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    names = {a.asname for node in block.body for a in node.names if a.name == a.asname}
    assert names == set(skfedcal.methods.__all__)


def test_every_case_is_run_by_an_algorithm_of_its_entry():
    """Every algorithm of the registry is asked by some estimator or statistic."""
    for method in registry.methods():
        assert method.algorithm_names, method.word
        for name in method.algorithm_names:
            assert method.word in registry.method_words(name, method.family)
        assert all(isinstance(case, Case) for case in method.cases)

"""Conformance tests of a method: what every calibrator of this package must satisfy.

`check_method` runs all checks for one entry of the registry, whichever package it
comes from; `method_checks` lists them for a test runner. Each check is a function of
an estimator, or of an algorithm, that raises AssertionError; the tests of this package
call the same functions on more data.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import clone

from skfedcal.clients.dataset import BLOCK_CELLS, FederatedDataset
from skfedcal.contract import Array, Arrays, Sums, bound_norm, check_broadcast
from skfedcal.federation.messages import InProcessTransport, Letter
from skfedcal.federation.policy import SitePolicy, admit
from skfedcal.federation.reading import SiteRows
from skfedcal.federation.remote import RemoteClients
from skfedcal.federation.request_catalogue import Schema, catalogue, examples_of
from skfedcal.federation.runner import FederatedRunner
from skfedcal.federation.site import Site
from skfedcal.federation.wire import read_request, write_request
from skfedcal.methods import registry
from skfedcal.methods.base import BaseCalibrator, FitSetting
from skfedcal.methods.persistence import load
from skfedcal.methods.registry import Case, Method
from skfedcal.privacy.accounting import calibrate_noise
from skfedcal.privacy.audits.estimator_audit import audit_estimator
from skfedcal.privacy.codec import Codec, add_up
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.mechanisms import LatticeGaussian, LatticeLaplace, PureBudget

__all__ = ["CheckResult", "check_method", "method_checks"]

# Number of classes, and (logits, labels) of each client.
Federation = tuple[int, Sequence[tuple[Array, Array]]]

# At this eps a single client is asked, and for all parts of a map: clients times mu are
# 10, where parts need 8 at most. With less, some methods ask nobody.
ASKING_EPS = 100.0

# Exported maps agree with `predict_proba` to this.
EXPORT_TOLERANCE = 1e-6


class SkippedCheckError(Exception):
    """A check that cannot run here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of one check that did not fail.

    Parameters
    ----------
    check : str
        Name of the check.
    case : str
        Estimator or algorithm that was checked.
    outcome : {'passed', 'exempt', 'skipped'}
        Exempt checks do not hold for the method, as its entry says; skipped ones need
        a package that is not installed.
    reason : str, default=''
        Why it is exempt or skipped.

    Examples
    --------
    >>> from skfedcal.testing import CheckResult
    >>> CheckResult("check_saved_file", "FedTempCalibrator()", "passed").outcome
    'passed'
    """

    check: str
    case: str
    outcome: Literal["passed", "exempt", "skipped"]
    reason: str = ""


def check_method(
    method: Method | str | BaseCalibrator | type[BaseCalibrator],
) -> list[CheckResult]:
    """Run all conformance tests of a method.

    Parameters
    ----------
    method : Method, str, estimator or class of estimators
        Entry of the registry or its word; of an estimator, the entry of its class, with
        the parameters of the estimator in place of the cases of the entry.

    Returns
    -------
    results : list of CheckResult
        Checks that passed, are exempt by the entry, or could not run.

    Raises
    ------
    AssertionError
        From the first check that fails; a note names the check and the case.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.testing import check_method
    >>> results = check_method(FedTempCalibrator(solver="grid"))
    >>> {result.outcome for result in results if "torch" not in result.check}
    {'passed'}
    """
    results = []
    for name, case, check in method_checks(method):
        try:
            reason = check()
        except SkippedCheckError as skipped:
            results.append(CheckResult(name, case, "skipped", str(skipped)))
        except Exception as error:
            error.add_note(f"{name} failed for {case}.")
            raise
        else:
            outcome: Any = "exempt" if reason else "passed"
            results.append(CheckResult(name, case, outcome, reason))
    return results


def method_checks(
    method: Method | str | BaseCalibrator | type[BaseCalibrator],
) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """List the conformance tests of a method, for a test runner.

    Parameters
    ----------
    method : Method, str, estimator or class of estimators
        As in `check_method`.

    Yields
    ------
    name : str
        Name of the check.
    case : str
        Estimator or algorithm that it is run on.
    check : callable
        Raises AssertionError; returns why the method is exempt, or an empty string.

    Examples
    --------
    >>> from skfedcal.testing import method_checks
    >>> sorted({name for name, _, _ in method_checks("temperature")})[:2]
    ['check_audit', 'check_batches']
    """
    entry = _entry_of(method)
    for case in entry.cases:
        estimator = entry.load()(**case.params)
        exempt = {**entry.exempt, **case.exempt}
        private = estimator._privacy_model().private
        for subject, checks in (
            (asking(estimator), ALWAYS),
            (estimator, PRIVATE_ONLY if private else EXACT_ONLY),
        ):
            for check in checks:
                why = exempt.get(check.__name__, "")
                yield check.__name__, repr(subject), _quiet(check, why, entry, subject)
    for algorithm in entry.own_algorithms:
        for check in ALGORITHM_CHECKS:
            why = entry.exempt.get(check.__name__, "")
            yield check.__name__, algorithm.name, _quiet(check, why, algorithm)


def _entry_of(method: Any) -> Method:
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        found = [m for m in registry.methods() if m.word == method]
    else:
        cls = method if isinstance(method, type) else type(method)
        found = [
            m for m in registry.methods() if m.estimator == registry.class_path(cls)
        ]
    if not found:
        raise ValueError(
            f"{method!r} is not registered; call skfedcal.register_method first."
        )
    if isinstance(method, (str, type)):
        return found[0]
    params = method.get_params(deep=False)
    known = [
        case.exempt for case in found[0].cases if case.params.items() <= params.items()
    ]
    private = {**params, "privacy": None, "eps": 1.0, "if_improves": False}
    cases = [Case(params, known[-1] if known else {})]
    if not method._privacy_model().private:
        cases.append(Case(private, cases[0].exempt))
    return replace(found[0], cases=tuple(cases))


def _quiet(check: Callable[..., None], why: str, *subject: Any) -> Callable[[], str]:
    """The check with its subject; exempt if `why` says so."""
    # Some checks of an estimator read its entry as well.
    wants_entry = next(iter(inspect.signature(check).parameters)) == "entry"
    subject = subject if wants_entry else subject[-1:]

    def run() -> str:
        if not why:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(*subject)
        return why

    return run


# Data.


def drawn(
    n_clients: int = 6,
    n_rows: int = 40,
    n_classes: int = 3,
    *,
    temperature: float = 2.0,
    seed: int = 0,
    dtype: Any = np.float64,
) -> Federation:
    """Clients of a model that is too confident by a known factor."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n_clients):
        true = rng.normal(size=(n_rows, n_classes)) * 1.5
        labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
        out.append(((true * temperature).astype(dtype), labels))
    return n_classes, out


def hard_federations() -> list[Federation]:
    """Clients without rows or with one class, ties, large values, float32."""
    found = [drawn(3, 12), drawn(2, 15, 2, seed=1, dtype=np.float32)]
    rng = np.random.default_rng(2)
    for c in (2, 4):
        clients = [(np.empty((0, c)), np.empty(0, dtype=int))]
        clients.append((np.zeros((3, c)), np.zeros(3, dtype=int)))
        large = rng.choice([-1e4, -8.0, 0.0, 8.0, 1e4], size=(5, c))
        clients.append((large, rng.integers(0, c, 5)))
        rows = rng.normal(size=(6, c)) * 3
        clients.append((rows, rows.argmax(axis=1)))
        found.append((c, clients))
    return found


def asking(estimator: Any) -> Any:
    """The estimator, if private with an eps at which a single client is asked."""
    if estimator.eps is None:
        return estimator
    return clone(estimator).set_params(eps=max(estimator.eps, ASKING_EPS))


def fit(estimator: Any, data: Federation) -> tuple[Any, Array]:
    """A fitted clone, and the rows of all clients."""
    n_classes, clients = data
    fresh = clone(estimator).set_params(classes=np.arange(n_classes))
    fresh.fit(list(clients))
    assert_asked(fresh)
    return fresh, np.concatenate([c[0] for c in clients])


def assert_asked(fitted: Any) -> None:
    """Compare nothing that no client was asked for."""
    assert fitted.n_rounds_ and len(fitted.history_) == fitted.n_rounds_, (
        f"{fitted!r} asked none of {fitted.n_clients_} clients: pass a larger eps"
    )


def assert_same_map(one: Any, other: Any, rows: Array) -> None:
    """Compare maps that were fitted from the same sums in another order.

    Where the loss is flat its minimum is known to rounding only, and so are the
    probabilities; that is what the tolerance is for.
    """
    np.testing.assert_allclose(
        one.predict_proba(rows), other.predict_proba(rows), rtol=1e-5, atol=1e-5
    )


def _over(check: Callable[..., None], estimator: Any, data: Any) -> bool:
    """Run a check on each hard federation if no data is given."""
    if data is not None:
        return False
    for each in hard_federations():
        check(estimator, each)
    return True


# Laws of exact and private estimators.


def check_documented(estimator: Any) -> None:
    """A summary of one sentence, all parameters and fitted attributes, an example."""
    doc = inspect.getdoc(type(estimator)) or ""
    assert doc.splitlines() and doc.splitlines()[0].endswith("."), "no summary"
    listed = {
        part.strip()
        for line in doc.splitlines()
        if " : " in line and not line.startswith(" ")
        for part in line.split(" : ")[0].split(",")
    }
    wanted = {*inspect.signature(type(estimator)).parameters, *estimator._fitted_names}
    assert wanted <= listed, f"not documented: {sorted(wanted - listed)}"
    assert ">>> " in doc, "no example"


def check_parameters(estimator: Any) -> None:
    """``__init__`` stores its arguments; those of all calibrators are there."""
    cls = type(estimator)
    shared = {"eps", "delta", "clip", "if_improves", "privacy", "ledger", "classes",
              "input_type", "runner", "random_state"}  # fmt: skip
    known = set(inspect.signature(cls).parameters)
    assert shared <= known, f"parameters {sorted(shared - known)} are missing"
    assert known <= set(cls._parameter_constraints), "parameters without a constraint"
    for name, value in estimator.get_params(deep=False).items():
        assert getattr(clone(estimator), name) is not None or value is None
    marks = {name: object() for name in known}
    made = cls(**marks)
    assert all(getattr(made, name) is mark for name, mark in marks.items())


_REFUSED = "sample_weight is refused under privacy: it would break a client's bound"
_SECRET = "under privacy labels that are column numbers do not tell which occur"
_WEIGHT_CHECKS = (
    "check_all_zero_sample_weights_error",
    "check_classifiers_one_label_sample_weights",
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weights_list",
    "check_sample_weights_not_an_array",
    "check_sample_weights_not_overwritten",
    "check_sample_weights_pandas_series",
    "check_sample_weights_shape",
)


def expected_failures(estimator: Any) -> dict[str, str]:
    """Common checks of scikit-learn that cannot hold for a calibrator, and why."""
    if not estimator._privacy_model().private:
        return {}
    return {
        "check_classifiers_one_label": _SECRET,
        **dict.fromkeys(_WEIGHT_CHECKS, _REFUSED),
    }


def check_sklearn(estimator: Any) -> None:
    """The common checks of scikit-learn, whose rows are one client."""
    from sklearn.utils.estimator_checks import check_estimator

    for n_classes in (2, 3):
        fit(estimator, drawn(1, 30, n_classes))
    if estimator._privacy_model().private:
        estimator = clone(estimator).set_params(random_state=0)
    check_estimator(estimator, expected_failed_checks=expected_failures(estimator))


def check_probabilities(estimator: Any, data: Federation | None = None) -> None:
    """Finite probabilities in the type of the input, that add up to 1."""
    if _over(check_probabilities, estimator, data):
        return
    cal, rows = fit(estimator, data)  # type: ignore[arg-type]
    proba, logs = cal.predict_proba(rows), cal.predict_log_proba(rows)
    assert proba.dtype == logs.dtype == rows.dtype
    assert np.isfinite(proba).all() and (proba >= 0).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=8 * np.finfo(rows.dtype).eps)
    np.testing.assert_allclose(np.exp(logs), proba, rtol=1e-3, atol=1e-6)
    assert set(cal.predict(rows)) <= set(cal.classes_)


def check_copies(estimator: Any) -> None:
    """Pickles and copies predict the same bits; a clone is not fitted."""
    estimator = clone(estimator).set_params(random_state=0)
    before = repr(estimator.get_params())
    fitted, rows = fit(estimator, drawn())
    assert repr(estimator.get_params()) == before
    expected = fitted.predict_proba(rows).tobytes()
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert twin.predict_proba(rows).tobytes() == expected
    fresh = clone(fitted)
    assert not hasattr(fresh, "classes_")
    again, _ = fit(fresh, drawn())
    assert again.predict_proba(rows).tobytes() == expected


def check_saved_file(estimator: Any, data: Federation | None = None) -> None:
    """A saved file gives the same predictions to the last bit."""
    if _over(check_saved_file, estimator, data):
        return
    fitted, rows = fit(estimator, data)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cal.json")
        fitted.save(path)
        text = path.read_text(encoding="utf-8")
        again = load(path)
        again.save(path)
        assert path.read_text(encoding="utf-8") == text
        for name in json.loads(text)["fitted"]:
            changed = json.loads(text)
            del changed["fitted"][name]
            path.write_text(json.dumps(changed), encoding="utf-8")
            try:
                other = load(path)
            except ValueError:
                continue
            # An attribute that older files lack is no part of the map.
            same = np.array_equal(other.predict_proba(rows), fitted.predict_proba(rows))
            assert same, f"a file without {name} was read and predicts something else"
    assert type(again) is type(fitted) and again.privacy_ == fitted.privacy_
    assert again.predict_proba(rows).tobytes() == fitted.predict_proba(rows).tobytes()
    assert np.asarray(again.classes).tolist() == np.asarray(fitted.classes).tolist()


def check_export(entry: Method, estimator: Any) -> None:
    """The exported graph gives what `predict_proba` gives, in torch and ONNX."""
    fitted, rows = fit(estimator, drawn(8, 60))
    if not entry.map and type(estimator).__name__ != "FedAutoCalibrator":
        raise SkippedCheckError("the entry has no map to export")
    rows = rows.copy()
    rows[0, 1:], rows[1], rows[2, 0], rows[3] = -np.inf, 0, 1e5, rows[3] * 1e-9
    expected = fitted.predict_proba(rows)
    missing = [name for name in ("torch", "onnxruntime") if find_spec(name) is None]
    if "torch" not in missing:
        import torch

        with torch.no_grad():
            found = fitted.to_torch()(torch.tensor(rows)).numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=EXPORT_TOLERANCE)
    if "onnxruntime" not in missing and find_spec("onnx") is not None:
        import onnxruntime  # type: ignore[import-untyped,unused-ignore]

        model = fitted.to_onnx(dtype="float64").SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, {"scores": rows})[1]
        np.testing.assert_allclose(found, expected, rtol=0, atol=EXPORT_TOLERANCE)
    if missing:
        raise SkippedCheckError(f"{' and '.join(missing)} not installed")


def check_batches(
    estimator: Any, dtypes: Sequence[Any] = (np.float32, np.float64), n_classes: int = 3
) -> None:
    """Predictions of a row have the same bits beside any rows and in any layout."""
    for dtype in dtypes:
        cal, rows = fit(estimator, drawn(2, 40, n_classes, dtype=dtype))
        for method in ("predict_proba", "predict_log_proba", "decision_function"):
            call = getattr(cal, method)
            whole = call(rows)
            for width in (1, 2, 7):
                parts = [call(rows[i : i + width]) for i in range(0, len(rows), width)]
                assert np.concatenate(parts).tobytes() == whole.tobytes()
            wide = np.repeat(rows, 2, axis=1)[:, ::2]
            for laid in (np.asfortranarray(rows), wide):
                assert call(laid).tobytes() == whole.tobytes()


# Laws of exact estimators.


def check_order_kept(
    estimator: Any, data: Federation | None = None, gap: float | None = None
) -> None:
    """The order of classes is that of the input, and ties stay ties.

    A smaller `gap` of the largest two logits may become a tie; None is rounding.
    """
    if _over(check_order_kept, estimator, data):
        return
    cal, rows = fit(estimator, data)  # type: ignore[arg-type]
    out = cal.predict_proba(rows)
    ranks = np.argsort(rows, axis=1, kind="stable")
    assert (np.diff(np.take_along_axis(out, ranks, axis=1), axis=1) >= 0).all()
    for a, b in zip(rows, out, strict=True):
        assert len(set(b)) <= len(set(a))
    chosen = np.take_along_axis(rows, cal.predict(rows)[:, None], axis=1)[:, 0]
    gap = 1e2 * np.finfo(rows.dtype).eps if gap is None else gap
    assert (chosen >= rows.max(axis=1) - gap).all()


def check_client_and_row_order(
    estimator: Any, data: Federation | None = None, seed: int = 0
) -> None:
    """Neither the order of clients nor that of their rows matters."""
    if _over(check_client_and_row_order, estimator, data):
        return
    rng = np.random.default_rng(seed)
    n_classes, clients = data  # type: ignore[misc]
    shuffled = []
    for i in rng.permutation(len(clients)):
        order = rng.permutation(len(clients[i][1]))
        shuffled.append((clients[i][0][order], clients[i][1][order]))
    one, rows = fit(estimator, (n_classes, clients))
    other, _ = fit(estimator, (n_classes, shuffled))
    assert_same_map(one, other, rows)


def check_merged_clients(estimator: Any, data: Federation | None = None) -> None:
    """Any partition of the rows into clients gives the same map."""
    if _over(check_merged_clients, estimator, data):
        return
    n_classes, clients = data  # type: ignore[misc]
    rows, labels = (np.concatenate([c[i] for c in clients]) for i in (0, 1))
    one, _ = fit(estimator, (n_classes, clients))
    other, _ = fit(estimator, (n_classes, [(rows, labels)]))
    assert_same_map(one, other, rows)


def check_empty_clients(estimator: Any, data: Federation | None = None) -> None:
    """Clients without rows change nothing but the number of clients."""
    if _over(check_empty_clients, estimator, data):
        return
    n_classes, clients = data  # type: ignore[misc]
    empty = (np.empty((0, n_classes)), np.empty(0, dtype=int))
    one, rows = fit(estimator, (n_classes, clients))
    other, _ = fit(estimator, (n_classes, [empty, *clients, empty]))
    assert other.n_clients_ == one.n_clients_ + 2
    assert_same_map(one, other, rows)


def check_duplicated_clients(
    estimator: Any, dtype: Any = np.float64, atol: float = 0.1
) -> None:
    """All clients twice give the same map, up to the weight of a prior."""
    c, clients = drawn(dtype=dtype)
    one, rows = fit(estimator, (c, clients))
    other, _ = fit(estimator, (c, [*clients, *clients]))
    np.testing.assert_allclose(
        one.predict_proba(rows), other.predict_proba(rows), atol=atol
    )


def check_class_permutation(estimator: Any, seed: int = 0, n_classes: int = 3) -> None:
    """Columns in another order give the same map in that order."""
    # Drawn rows: binning is discontinuous, so rows on a bin edge are left out.
    c, clients = drawn(3, 30, n_classes, seed=seed)
    perm = np.random.default_rng(seed).permutation(c)
    renamed = [(rows[:, perm], np.argsort(perm)[labels]) for rows, labels in clients]
    one, rows = fit(estimator, (c, clients))
    other, _ = fit(estimator, (c, renamed))
    np.testing.assert_allclose(
        one.predict_proba(rows)[:, perm], other.predict_proba(rows[:, perm]), rtol=1e-6
    )


def check_row_shift(estimator: Any, seed: int = 0, shift: float = 100.0) -> None:
    """A constant added to all logits of a row changes nothing."""
    c, clients = drawn(3, 30, seed=seed)
    moved = [(rows + shift * np.cos(np.arange(30))[:, None], y) for rows, y in clients]
    one, rows = fit(estimator, (c, clients))
    other, there = fit(estimator, (c, moved))
    np.testing.assert_allclose(
        one.predict_proba(rows), one.predict_proba(there), rtol=1e-9
    )
    np.testing.assert_allclose(
        one.predict_proba(rows), other.predict_proba(rows), rtol=1e-7
    )


# Engines and sites.

NAMES = tuple(f"site-{i}" for i in range(6))


def sites_of(
    clients: Mapping[Any, tuple[Array, Array]], policy: SitePolicy
) -> dict[Any, Site]:
    """The same clients as sites, each with its own rows."""
    return {n: Site(n, SiteRows(*rows), policy=policy) for n, rows in clients.items()}


def history_digest(history: Any) -> str:
    """SHA-256 of everything that was released."""
    sha = hashlib.sha256()
    for record in history:
        for name, value in sorted(record.total.items()):
            sha.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()


def short_runner(estimator: Any, clients: Any) -> FederatedRunner:
    """A runner of two rounds, where the method takes so few; else of all rounds."""
    runner = FederatedRunner(n_rounds=2)
    try:
        clone(estimator).set_params(runner=runner).fit(clients)
    except ValueError:
        return FederatedRunner()
    return runner


class _Recording(InProcessTransport):
    """Transport that keeps the requests which it carries."""

    def call(self, kind: str, letters: Mapping[Any, Letter]) -> Any:
        self.texts: list[str] = getattr(self, "texts", [])
        self.texts += [m["request"] for m, _ in letters.values() if "request" in m]
        return super().call(kind, letters)


def check_engines(entry: Method, estimator: Any) -> None:
    """All engines, masked or not, release the same bits; sites accept all requests.

    Sites allow nothing but this method, by its word, and algorithms that list rows by
    their names.
    """
    c, clients = drawn(6, 30)
    named = dict(zip(NAMES, clients, strict=True))
    listing = [
        algorithm.name
        for algorithm in entry.own_algorithms
        if getattr(registry.load_object(algorithm.path), "lists_rows", False)
    ]
    policy = SitePolicy(methods=(entry.word, *listing), allow_plain=True)
    fresh = clone(estimator).set_params(classes=list(range(c)), random_state=0)
    found, texts = {}, []
    runner = short_runner(fresh, clients)
    for secure in (False, True):
        transport = _Recording(sites_of(named, policy))
        for engine, where, n_jobs in (
            ("in process", named, None),
            ("threads", named, 2),
            ("messages", RemoteClients(transport), None),
        ):
            own = runner.set_params(secure=secure, n_jobs=n_jobs)
            fitted = clone(fresh).set_params(runner=own).fit(where)
            assert_asked(fitted)
            found[f"{'masked ' * secure}{engine}"] = history_digest(fitted.history_)
        texts += transport.texts
    assert len(set(found.values())) == 1, found
    asked = {json.loads(text)["algorithm"]["class"] for text in texts}
    assert asked <= set(entry.algorithm_names), f"{asked} are not in the entry"


def check_sites(algorithm: registry.Algorithm) -> None:
    """A site admits the requests of the library, and no other broadcast."""
    schemas = [Schema((0, 1, 2), 3), Schema((0, 1), 2)]
    found = [e for s in schemas for e in catalogue(s, algorithms=[algorithm.name])]
    assert {entry.model for entry in found} >= {"exact"}, "no request of the library"
    for entry in found:
        request = entry.request
        text, arrays = write_request(request)
        assert read_request(text, arrays).algorithm == request.algorithm
        lists = getattr(request.algorithm, "lists_rows", False)
        methods = (algorithm.name,) if lists else None
        policy = SitePolicy(methods=methods, allow_plain=True, min_clients=1)
        message = {"run": "r", "round": 0}
        admit(text, message, arrays, policy=policy, n_classes=None, masked=True)
        n_classes = len(request.reading.classes)  # type: ignore[union-attr]
        for bent in _bent(arrays):
            try:
                check_broadcast(request.algorithm, bent, n_classes)
            except ValueError:
                continue
            raise AssertionError(
                f"forms() of {algorithm.name} accepts {_shapes(bent)} in place of "
                f"{_shapes(arrays)}"
            )


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(array) for name, array in arrays.items()}


def _bent(arrays: Mapping[str, Array]) -> Iterator[Arrays]:
    """Broadcasts that the algorithm would not send."""
    yield {**arrays, "more": np.zeros(1)}
    for name, array in arrays.items():
        yield {key: value for key, value in arrays.items() if key != name}
        yield {**arrays, name: np.zeros((*array.shape, 2), dtype=array.dtype)}
        yield {**arrays, name: array.astype(str)}


def check_own_rows(
    algorithm: registry.Algorithm,
    n_classes: int = 3,
    dtypes: Sequence[Any] = (np.float64, np.float32),
    layouts: Sequence[str] = ("C", "F", "shuffled"),
    large: bool = False,
) -> None:
    """What a client sends depends on its own rows only, to the last bit."""
    if algorithm.n_classes is not None:
        n_classes = algorithm.n_classes
    for made, broadcast in asked(algorithm, n_classes):
        for dtype in dtypes:
            for layout in layouts:
                subject = _weighted(made) if layout == "F" else made
                data = hard_rows(subject, n_classes, dtype, layout, large)
                _compare_alone(subject, broadcast, data, algorithm.name)


def asked(algorithm: registry.Algorithm, n_classes: int) -> list[tuple[Any, Arrays]]:
    """Cases of an algorithm with the broadcasts of their first rounds."""
    # Two scores of a row have twice the columns; other features may have any number.
    width = 2 * n_classes if algorithm.rows == "features" else n_classes
    schema = Schema(tuple(range(n_classes)), width)
    found = []
    for made in examples_of(algorithm.name, schema):
        state = made.init(n_classes)
        sample = hard_rows(made, n_classes, np.float64, "C", False)
        for _ in range(min(3, made.n_rounds)):
            broadcast = made.broadcast(state)
            check_broadcast(made, broadcast, n_classes)
            found.append((made, broadcast))
            sums = {
                k: dense(v).sum(axis=0)
                for k, v in made.query(broadcast, sample).items()
            }
            state = made.update(state, Sums(sums), len(sample))
            if made.done(state):
                break
    return found


def _weighted(made: Any) -> Any:
    """The algorithm for rows with weights, which are not bounded."""
    bounded = any(getattr(made, name, None) for name in ("clip", "clip_positive"))
    if bounded or not hasattr(made, "weighted"):
        return made
    return replace(made, weighted=True)


def dense(values: Any) -> Array:
    """Rows of an answer as an array."""
    out: Array = values.dense() if hasattr(values, "dense") else values
    return out


def hard_rows(
    made: Any, n_classes: int, dtype: Any, layout: str, large: bool
) -> FederatedDataset:
    """Clients of all sizes; the largest softmax entry of a row is 1/2 to a bit or two.

    With two bins of [0, 1] the bin then tells in which order the row was added up.
    """
    width = getattr(made, "n_features", None) or n_classes
    rng = np.random.default_rng(width)
    limit = BLOCK_CELLS // width
    more = [limit + 3, 1, 0, limit] if large else []
    sizes = np.r_[0, 1, 1, 2, 3, 7, 0, 1, rng.integers(0, 40, 6), more, 2, 8, 9, 0]
    sizes = sizes.astype(np.int64)
    n = int(sizes.sum())
    logits = rng.normal(size=(n, width)) * 4
    column = rng.integers(0, width, n)
    others = np.exp(logits)
    others[np.arange(n), column] = 0
    logits[np.arange(n), column] = np.log(others.sum(axis=1))
    rows = logits.astype(dtype)
    if layout == "F":
        rows = np.asfortranarray(rows)
    elif layout == "strided":
        rows = np.repeat(rows, 2, axis=1)[:, ::2]
    elif layout == "unaligned":
        raw = np.empty(rows.nbytes + 1, dtype=np.uint8)[1:]
        view = raw.view(dtype).reshape(rows.shape)
        view[:] = rows
        rows = view
    labels = rng.integers(0, n_classes, n).astype(np.int16)
    weights = rng.random(n) if getattr(made, "weighted", False) else None
    order = rng.permutation(n) if layout == "shuffled" else None
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(
        rows, labels, offsets, range(len(sizes)), n_classes, weights, order
    )


def alone(data: FederatedDataset, i: int) -> FederatedDataset:
    """Client `i` as its own site would hold it: a fresh array, aligned, in C order."""
    packed = np.arange(data.offsets[i], data.offsets[i + 1])
    where = packed if data.order is None else data.order[packed]
    return FederatedDataset(
        np.array(data.rows[where], order="C"),
        data.labels[packed].copy(),
        np.array([0, len(packed)]),
        [data.names[i]],
        data.n_classes,
        weights=None if data.weights is None else data.weights[packed].copy(),
    )


def _compare_alone(
    made: Any, broadcast: Arrays, data: FederatedDataset, name: str
) -> None:
    together = {k: dense(v) for k, v in made.query(broadcast, data).items()}
    small = [i for i in range(len(data)) if data.sizes[i] < 50]
    for i in range(len(data)):
        views = [alone(data, i)]
        if i in small[::3]:
            views += [data.slice(i, i + 1), data.select(np.array([i]))]
        if i in small[:-1]:
            views.append(data.slice(i, i + 2).compact().slice(0, 1))
        for view in views:
            for key, answer in made.query(broadcast, view).items():
                mine, here = dense(answer), together[key][i : i + 1]
                # Whole numbers may come as floats beside a client that is shortened.
                kind = np.result_type(mine, here)
                same = mine.astype(kind).tobytes() == here.astype(kind).tobytes()
                assert same, f"{name}: {key} of client {i} depends on other clients"


# Privacy.


def lattice(
    estimator: Any, n_classes: int, n_clients: int
) -> tuple[Any, Arrays, Codec]:
    """Algorithm, first broadcast and codec of a private fit, as `fit` builds them."""
    setting = FitSetting(n_classes, True, "client", False)
    estimator = clone(estimator)
    algorithm = estimator._make_algorithm(setting)
    broadcast = algorithm.broadcast(algorithm.init(n_classes))
    spec = algorithm.spec(broadcast)
    account: dict[str, Any] = {
        "entropy": SeededEntropy(0),
        "ledger": PrivacyLedger(),
        "n_units": n_clients,
        "n_releases": algorithm.n_rounds,
        "n_values": sum(b.size for b in spec.values()),
    }
    mechanism: Any
    if bound_norm(algorithm, n_classes) == "l1":
        mechanism = LatticeLaplace(PureBudget(1.0, algorithm.n_rounds), **account)
    else:
        plan = calibrate_noise(1.0, 1e-5, n_rounds=algorithm.n_rounds)
        mechanism = LatticeGaussian(plan, split=estimator._noise_split(), **account)
    return algorithm, broadcast, mechanism.codec(spec)


def check_bounded_contribution(estimator: Any, data: Federation | None = None) -> None:
    """Removing a client moves the integer sum by at most the limit of its norm.

    This is what makes the guarantee true, on the integers that are sent.
    """
    if data is None:
        rng = np.random.default_rng(0)
        extreme = rng.choice([-np.inf, -1e308, -1e6, 0.0, 1e-300, 1e6], size=(300, 3))
        extreme[:, 0] = rng.choice([0.0, 1e6, 1e308], size=300)
        labels = rng.integers(0, 3, 300)
        c, clients = drawn(3, 30)
        parts = [(extreme[i::4], labels[i::4]) for i in range(4)]
        check_bounded_contribution(estimator, (c, [*clients, *parts]))
        for each in hard_federations():
            check_bounded_contribution(estimator, each)
        return
    n_classes, clients = data
    algorithm, broadcast, codec = lattice(estimator, n_classes, len(clients))

    def total(names: Sequence[int]) -> dict[str, Array]:
        some = [clients[i] for i in names]
        rows = np.concatenate([np.empty((0, n_classes)), *(c[0] for c in some)])
        labels = np.concatenate([np.empty(0, dtype=int), *(c[1] for c in some)])
        sizes = [0, *(len(c[1]) for c in some)]
        dataset = FederatedDataset(rows, labels, np.cumsum(sizes), names, n_classes)
        encoded = codec.encode(algorithm.query(broadcast, dataset))
        return {key: add_up(value) for key, value in encoded.items()}

    everyone = total(range(len(clients)))
    for i in range(len(clients)):
        # The others keep their names, which decide what of their rows they send.
        rest = total([j for j in range(len(clients)) if j != i])
        for key, code in codec.blocks.items():
            moved = (everyone[key] - rest[key]).reshape(code.spec.groups, -1)
            power = 1 if code.spec.norm == "l1" else 2
            size = np.abs(moved.astype(object)) ** power
            assert (size.sum(axis=1) <= code.limit).all(), f"block {key!r}"


def check_no_clients(estimator: Any) -> None:
    """A cohort without clients sends nothing."""
    algorithm, broadcast, codec = lattice(estimator, 3, 10)
    offsets = np.array([0, 4, 9])
    data = FederatedDataset(
        np.zeros((9, 3)), np.zeros(9, dtype=int), offsets, range(2), 3
    )
    for nobody in (data.slice(1, 1), data.select(np.array([], dtype=int))):
        encoded = codec.encode(algorithm.query(broadcast, nobody))
        assert all(len(value) == 0 for value in encoded.values())


def check_seeds(estimator: Any) -> None:
    """The same seed gives the same fit, another seed or none other noise."""
    data = drawn(30, 20)
    rows = data[1][0][0]

    def proba(seed: int | None) -> Array:
        out: Array = fit(clone(estimator).set_params(random_state=seed), data)[
            0
        ].predict_proba(rows)
        return out

    assert proba(1).tobytes() == proba(1).tobytes()
    assert not np.array_equal(proba(1), proba(2))
    assert not np.array_equal(proba(None), proba(None))


def check_noise_by_eps(estimator: Any) -> None:
    """Noise in the first release grows as eps falls."""
    # As many clients as all parts of a map are asked of at every eps.
    data = drawn(800, 1)

    def released(eps: float, seed: int) -> Any:
        params = {"eps": eps, "random_state": seed}
        return fit(clone(estimator).set_params(**params), data)[0].history_[0].total

    limit = released(1e4, 0)
    for key in limit:
        errors = [
            np.median(
                [np.abs(released(e, s)[key] - limit[key]).mean() for s in range(8)]
            )
            for e in (0.1, 3.0, 300.0)
        ]
        # Noise falls more than fivefold from each eps to the next; of few numbers the
        # median over seeds (fixed) is still told apart.
        assert errors == sorted(errors, reverse=True)
    reports = [
        fit(clone(estimator).set_params(eps=e), data)[0].privacy_ for e in (0.1, 3)
    ]
    assert reports[0].noise_multiplier > 5 * reports[1].noise_multiplier


def check_audit(estimator: Any, n_runs: int = 0) -> None:
    """The audit of whole fits finds nothing; with `n_runs` also over that many fits."""
    result = audit_estimator(clone(estimator), n_runs=n_runs, random_state=0)
    assert result.passed, result


ALWAYS: tuple[Callable[..., None], ...] = (
    check_documented,
    check_parameters,
    check_sklearn,
    check_probabilities,
    check_copies,
    check_saved_file,
    check_export,
    check_batches,
    check_engines,
)
EXACT_ONLY: tuple[Callable[..., None], ...] = (
    check_order_kept,
    check_client_and_row_order,
    check_merged_clients,
    check_empty_clients,
    check_duplicated_clients,
    check_class_permutation,
    check_row_shift,
)
PRIVATE_ONLY: tuple[Callable[..., None], ...] = (
    check_bounded_contribution,
    check_no_clients,
    check_seeds,
    check_noise_by_eps,
    check_audit,
)
ALGORITHM_CHECKS: tuple[Callable[..., None], ...] = (check_sites, check_own_rows)

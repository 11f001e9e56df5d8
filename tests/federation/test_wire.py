"""Requests as plain data: the same on the other side, or refused by name."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from inspect import isclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skfedcal
from skfedcal import (
    ClasswiseResiduals,
    FedBinCalibrator,
    FedHistogramCalibrator,
    FedMLPCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    ScoreHistogram,
    federated_roc_auc_score,
    make_federation,
)
from skfedcal.contract import FederatedAlgorithm
from skfedcal.federation import (
    FederatedRunner,
    InProcess,
    Reading,
    Request,
    SitePolicy,
    backends,
)
from skfedcal.federation.endpoint import request_words
from skfedcal.federation.plain import WireError, _hints
from skfedcal.federation.policy import admit
from skfedcal.federation.wire import read_request, write_request
from skfedcal.methods import registry
from skfedcal.methods.bins import rounds as bins_rounds
from skfedcal.methods.scaling.families import (
    Family,
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
)
from skfedcal.methods.temperature.rounds import TemperatureNewton
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    GaussianEvent,
    LocalDP,
    PureEvent,
    SecureAggregation,
    SourceDP,
)
from skfedcal.privacy.entropy import SeededEntropy

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FED = make_federation(8, 240, 3, random_state=0)
TWO = make_federation(8, 240, 2, random_state=0)


def captured(fit):
    """Requests that a fit would send."""
    seen = []
    plain = InProcess.total

    def total(self, request, cohort):
        seen.append(request)
        return plain(self, request, cohort)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends.InProcess, "total", total)
        fit()
    return seen


FITS = {
    "polya": lambda: ScoreHistogram.fit(
        TWO.clients, privacy=DistributedDP(1.0, n_min=5, mode="faithful")
    ),
    "colluders": lambda: ScoreHistogram.fit(
        TWO.clients,
        privacy=DistributedDP(1.0, n_min=5, mode="faithful", max_colluders=2),
    ),
    "reports": lambda: ScoreHistogram.fit(
        TWO.clients, privacy=LocalDP(1.0, mode="faithful"), height=2
    ),
    "fast reports": lambda: ScoreHistogram.fit(
        TWO.clients, privacy=LocalDP(1.0), height=2
    ),
    "source": lambda: ScoreHistogram.fit(
        TWO.clients, privacy=SourceDP(1.0, mode="faithful"), weighting="example"
    ),
    "rows": lambda: FedTempCalibrator(privacy=CentralDP(1.0, unit="example")).fit(
        FED.clients
    ),
    "gaussian": lambda: FedVectorCalibrator(
        privacy=DistributedDP(1.0, mode="faithful")
    ).fit(FED.clients),
    "client weights": lambda: ScoreHistogram.fit(TWO.clients, weighting="client"),
    "residuals": lambda: ClasswiseResiduals.fit(FED.clients),
    "one vs rest": lambda: federated_roc_auc_score(FED.clients, multi_class="ovr"),
    "seeded": lambda: ScoreHistogram.fit(
        TWO.clients, privacy=DistributedDP(1.0, mode="faithful"), random_state=0
    ),
}


def assert_same(found, request, seeded=False):
    for f in fields(Request):
        mine, theirs = getattr(request, f.name), getattr(found, f.name)
        if f.name == "entropy":
            assert (theirs is None) or seeded
        elif f.name == "n_units":
            assert theirs == 0  # what the server knows of rows stays with it
        elif f.name == "broadcast":
            assert sorted(mine) == sorted(theirs)
            for name, value in mine.items():
                value = np.asarray(value)
                assert theirs[name].dtype == value.dtype
                assert theirs[name].shape == value.shape
                assert theirs[name].tobytes() == value.tobytes()
        elif f.name == "codec":
            assert list(mine.blocks) == list(theirs.blocks)
            assert mine.blocks == theirs.blocks
        else:
            assert type(mine) is type(theirs)
            assert mine == theirs, f.name


def assert_admitted(request, n_classes):
    """A site accepts what an honest server asks, and derives the same words."""
    masked = request.n_min > 0 or request.unit == "example"
    text, arrays = write_request(request)
    admitted = admit(
        text,
        {"run": "r", "round": 0},
        arrays,
        policy=SitePolicy(allow_plain=True),
        n_classes=n_classes,
        masked=masked,
    )
    assert admitted.words == request_words(request, masked=masked)


@pytest.mark.parametrize("eps", [None, 1.0])
def test_every_calibrator_sends_what_it_asks(calibrator_class, eps):
    runner = (
        FederatedRunner(n_rounds=3) if calibrator_class is FedMLPCalibrator else None
    )
    calibrator = calibrator_class(eps, runner=runner)
    if eps is not None and not registry.method_of(calibrator_class).has_noise:
        with pytest.raises(ValueError, match="no version with noise"):
            calibrator.fit(FED.clients)
        return
    requests = captured(lambda: calibrator.fit(FED.clients))
    assert requests
    for request in requests:
        assert_same(read_request(*write_request(request)), request)
        assert_admitted(request, FED.logits.shape[1])


@pytest.mark.parametrize("name", FITS)
def test_every_kind_of_noise_is_sent(name):
    requests = captured(FITS[name])
    assert requests
    for request in requests:
        assert_same(read_request(*write_request(request)), request)
        assert_admitted(
            request, getattr(request.algorithm, "n_classes", FED.logits.shape[1])
        )


def test_all_algorithms_are_known_to_sites():
    root = Path(skfedcal.__file__).parent
    files = [*root.glob("methods/*/*rounds.py"), *root.glob("evaluation/*rounds.py"),
             root / "training/class_statistics.py", root / "methods/held_back.py",
             root / "federation/self_test_rounds.py"]  # fmt: skip
    modules = [
        import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
        for path in files
    ]
    asked = {
        cls
        for module in modules
        for cls in vars(module).values()
        if isclass(cls) and is_dataclass(cls) and hasattr(cls, "query")
    }
    known = {algorithm.load() for algorithm in registry.algorithms().values()}
    assert asked == {cls for cls in known if cls.__module__.startswith("skfedcal.")}
    assert len(asked) >= 22


# Instances with any values that their types allow.
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SIMPLE = {int: st.integers(-(2**62), 2**62), float: NUMBERS, bool: st.booleans(),
          str: st.text(max_size=3)}  # fmt: skip


def values_of(hint):
    from types import UnionType
    from typing import Literal, Union, get_args, get_origin

    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint is Family:
        families = VectorMap, MatrixMap, OrderPreservingMap
        return st.sampled_from([family() for family in families])
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=4).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=3), values_of(args[1]), max_size=2)
    if origin is FederatedAlgorithm:
        return st.builds(TemperatureNewton, n_rounds=st.integers(1, 9))
    assert origin in (Union, UnionType)
    return st.one_of(*(st.none() if a is type(None) else values_of(a) for a in args))


@given(data=st.data(), name=st.sampled_from(sorted(registry.algorithms())))
def test_any_instance_of_any_algorithm_survives(data, name):
    cls = registry.algorithms()[name].load()
    values = {key: data.draw(values_of(hint)) for key, hint in _hints(cls).items()}
    algorithm = cls(**values)
    request = replace(BASE, algorithm=algorithm)
    found = read_request(*write_request(request)).algorithm
    assert found == algorithm
    assert repr(found) == repr(algorithm)  # also tells 1 from 1.0 and 0.0 from -0.0


def make_base():
    fit = FedBinCalibrator(eps=1.0, n_bins=4, if_improves=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return captured(lambda: fit.fit(FED.clients))[0]


BASE = make_base()


def test_readings_and_claims_survive():
    for classes in ((0, 1), ("no", "yes"), (0.5, 2.5), (False, True), (2**60, -1)):
        reading = Reading(classes, "proba", 1, "given")
        request = replace(BASE, reading=reading, run="r", round_index=3)
        for claim in (None, GaussianEvent(0.1, eps_slack=1e-9), PureEvent(1 / 3)):
            found = read_request(*write_request(replace(request, claim=claim)))
            assert found.reading == reading
            assert list(map(type, found.reading.classes)) == list(map(type, classes))
            assert (found.claim, found.run, found.round_index) == (claim, "r", 3)


def test_numpy_numbers_become_plain():
    algorithm = bins_rounds.ClassHistograms(
        np.int64(5), np.float32(0.5), per_class=np.True_
    )
    found = read_request(*write_request(replace(BASE, algorithm=algorithm))).algorithm
    assert found == algorithm
    assert type(found.n_bins) is int and type(found.clip_positive) is float


# Seeds.


def test_a_seed_does_not_travel():
    request = captured(FITS["seeded"])[0]
    assert isinstance(request.entropy, SeededEntropy)
    text, arrays = write_request(request)
    assert json.loads(text)["seed"] is None
    assert read_request(text, arrays).entropy is None


def test_a_simulation_that_says_so_sends_it():
    request = captured(FITS["seeded"])[0]
    found = read_request(*write_request(request, simulate=True)).entropy
    assert found.uint64(3).tolist() == request.entropy.child().uint64(3).tolist()


def test_a_seed_of_the_server_stays_where_clients_draw_nothing():
    fit = FedTempCalibrator(eps=1.0, random_state=0)
    request = captured(lambda: fit.fit(FED.clients))[0]
    assert request.simulated and request.randomizer is None and request.entropy is None
    # Nor does the letter carry one that a request has.
    seeded = replace(request, entropy=SeededEntropy(0))
    assert json.loads(write_request(seeded, simulate=True)[0])["seed"] is None


# What is not read.


@dataclass(frozen=True)
class ClassHistograms:
    """A class of the same name from somewhere else."""

    n_rounds: int = 1


@pytest.mark.parametrize("algorithm", [ClassHistograms(), object(), None])
def test_other_algorithms_are_not_sent(algorithm):
    with pytest.raises(WireError, match="cannot be sent"):
        write_request(replace(BASE, algorithm=algorithm))


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, np.nan]),
        np.array([np.inf]),
        np.array(["a"]),
        np.array([None]),
        np.array([1j]),
        np.arange(3, dtype=">i8"),
    ],
)
def test_a_broadcast_of_other_values_is_not_sent(value):
    with pytest.raises(WireError, match="'odd'"):
        write_request(replace(BASE, broadcast={"odd": value}))


def changed(path, value):
    text, arrays = write_request(BASE)
    content = json.loads(text)
    at = content
    for key in path[:-1]:
        at = at[key]
    if value is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(content), arrays


BLOCK = ("codec", "positive")
BAD = {
    "another format": (("format",), "x", "format 'x'"),
    "no format": (("format",), KeyError, "format None"),
    "unknown field": (("extra",), 1, "unknown field 'extra'"),
    "missing field": (("n_min",), KeyError, "missing field 'n_min'"),
    "unknown algorithm": (("algorithm", "class"), "Popen", "'Popen' is unknown"),
    "class of a module": (("algorithm", "class"), "os.system", "is unknown"),
    "a class as a list": (("algorithm", "class"), ["x"], "is unknown"),
    "no algorithm": (("algorithm",), None, "algorithm is None"),
    "algorithm as text": (("algorithm",), "x", "expected an object"),
    "new parameter": (("algorithm", "hook"), 1, "unknown field 'hook'"),
    "lost parameter": (("algorithm", "n_bins"), KeyError, "missing field 'n_bins'"),
    "text for a number": (("algorithm", "n_bins"), "9", "n_bins is '9'"),
    "real for a count": (("algorithm", "n_bins"), 9.0, "n_bins is 9.0"),
    "truth for a count": (("algorithm", "n_bins"), True, "n_bins is True"),
    "number for truth": (("algorithm", "per_class"), 1, "per_class is 1"),
    "list for a number": (("algorithm", "clip_positive"), [1], "clip_positive"),
    "not finite": (("algorithm", "clip_positive"), 1e999, "not a finite number"),
    "too many digits": (("algorithm", "clip_positive"), 10**400, "a finite number"),
    "null": (("algorithm", "n_bins"), None, "n_bins is None"),
    "another unit": (("unit",), "row", "unit is 'row'"),
    "negative count": (("n_min",), -1, "n_min is -1"),
    "huge count": (("n_units",), 2**70, "n_units"),
    "codec as list": (("codec",), [], "codec is"),
    "name of a block": ((*BLOCK, "class"), "Other", "unknown field 'class'"),
    "name of a class": (("algorithm", "class"), "ClassHistograms", "is unknown"),
    "no name": (("algorithm", "class"), KeyError, "algorithm None is unknown"),
    "step of zero": ((*BLOCK, "step"), 0.0, "positive numbers"),
    "negative clip": ((*BLOCK, "spec", "clip"), -1.0, "positive numbers"),
    "another norm": ((*BLOCK, "spec", "norm"), "l3", "norm is 'l3'"),
    "negative shape": ((*BLOCK, "spec", "shape"), [-3, 4], "invalid shape"),
    "no groups": ((*BLOCK, "spec", "groups"), 0, "invalid shape"),
    "odd groups": ((*BLOCK, "spec", "groups"), 2, "invalid shape"),
    "shape of reals": ((*BLOCK, "spec", "shape"), [3.0, 4], r"shape\[0\] is 3.0"),
    "randomizer": (("randomizer",), {"class": "Fork"}, "'Fork' is unknown"),
    "lost scales": (("randomizer",), {"class": "noise.laplace_shares/1"}, "'scales'"),
    "oracle": (
        ("randomizer",),
        {"class": "noise.local_reports/1", "oracles": {"a": {"kind": "x", "eps": 1.0,
                                                             "domain": 2}}},
        "kind is 'x'",
    ),
    "one class": (
        ("reading",),
        {"classes": [1], "input_type": "logits", "n_columns": 0, "rows": "logits"},
        "two or more",
    ),
    "no event": (("claim",), {"kind": "magic"}, "magic"),
    "odd event": (("claim",), {"kind": "pure", "eps": "x", "eps_slack": 0.0,
                               "delta_slack": 0.0}, "claim"),
    "claim as text": (("claim",), "free", "claim"),
    "seed as text": (("seed",), "0", "seed"),
    "negative seed": (("seed",), [-1], "seed"),
    "run as number": (("run",), 1, "run is 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_by_name(case):
    path, value, words = BAD[case]
    with pytest.raises(WireError, match=words):
        read_request(*changed(path, value))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"format": NaN}', "[" * 100_000, " " * (1 << 21), None, b"x"],
)
def test_other_texts_are_refused(text):
    with pytest.raises(WireError):
        read_request(text, {})


def test_a_name_twice_is_refused():
    text, arrays = write_request(BASE)
    twice = text.replace('"n_min":0', '"n_min":0,"n_min":9')
    assert twice != text
    with pytest.raises(WireError, match="twice"):
        read_request(twice, arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.clear(),
        lambda arrays: arrays.update(more=np.zeros(1)),
        lambda arrays: arrays.update(log_beta=arrays["log_beta"] + 1e-300 + 1e-9),
        lambda arrays: arrays.update(log_beta=arrays["log_beta"].astype(np.float32)),
        lambda arrays: arrays.update(log_beta=arrays["log_beta"].reshape(1)),
        lambda arrays: arrays.update(log_beta=np.array(np.nan)),
        lambda arrays: arrays.update(log_beta=[0.0]),
    ],
)
def test_another_broadcast_is_refused(change):
    fit = FedTempCalibrator(eps=1.0)
    text, arrays = write_request(captured(lambda: fit.fit(FED.clients))[0])
    read_request(text, arrays)
    arrays = dict(arrays)
    change(arrays)
    with pytest.raises(WireError):
        read_request(text, arrays)


def test_exact_sums_are_sent_without_noise():
    fit = FedHistogramCalibrator(privacy=SecureAggregation())
    request = captured(lambda: fit.fit(FED.clients))[0]
    found = read_request(*write_request(request))
    assert found.randomizer is None and found.claim is None

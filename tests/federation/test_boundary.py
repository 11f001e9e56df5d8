"""What a dishonest server asks, and a site must not answer: one test for each trick."""

import json
import logging
import resource
import subprocess
import sys

import numpy as np
import pytest

from skfedcal import (
    FedBiasTempCalibrator,
    FederatedDataset,
    FederatedRunner,
    FedTempCalibrator,
    FedVectorCalibrator,
    make_federation,
)
from skfedcal.clients.arrays import _SUM_TOLERANCE
from skfedcal.contract import broadcast_forms, check_broadcast
from skfedcal.evaluation.rounds import ClassResiduals
from skfedcal.federation import (
    InProcessTransport,
    Reading,
    RemoteClients,
    Request,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.federation.policy import answer_cost
from skfedcal.federation.wire import write_request
from skfedcal.methods.accuracy_temperature.rounds import (
    EceGrid,
    GapParts,
    TemperatureSearch,
)
from skfedcal.methods.bias_temperature.rounds import BiasTemperatureNewton
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.network.rounds import MLPAveraging
from skfedcal.methods.scaling.families import MatrixMap, VectorMap
from skfedcal.methods.scaling.rounds import LocalAverage, PooledFit
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, ScoreCounts
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.methods.temperature.rounds import TemperatureGrid, TemperatureNewton
from skfedcal.methods.top_bins.rounds import TopBinCounts
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    PrivacyLedger,
    SourceDP,
)
from skfedcal.privacy.entropy import OSEntropy
from skfedcal.privacy.site_ledger import SiteLedger

COUNTS = ClassScoreCounts(levels=(7,), clip=1.0, max_examples=1)
GIVEN = Reading((0, 1), rows="given")


def make_request(model, algorithm=COUNTS, reading=GIVEN, n_classes=2):
    data = FederatedDataset(
        np.zeros((4, n_classes)), np.zeros(4, dtype=int), np.arange(5), list("abcd"), 2
    )
    plan = FederatedRunner().release_plan(algorithm, data, model.unit)
    mechanism = model.mechanism(
        plan, entropy=OSEntropy(), ledger=PrivacyLedger(), split="split", label="x"
    )
    mechanism.open("run")
    broadcast = algorithm.broadcast(algorithm.init(n_classes))
    codec = mechanism.codec(algorithm.spec(broadcast))
    return Request(
        algorithm,
        broadcast,
        codec,
        mechanism.unit,
        mechanism.randomizer(codec, 0),
        None,
        mechanism.n_min,
        n_clients=4,
        reading=reading,
        claim=mechanism.event,
        run="run",
    )


def site_with(label, score=0.3, **options):
    rows = SiteRows(np.array([[0.0, score]]), np.array([label]))
    options = {"policy": SitePolicy(noise="own"), **options}
    return Site("a", rows, ledger=SiteLedger(budget=(100.0, 1e-5)), **options)


def ask(site, request, change=None):
    """Reply to a request whose JSON text a dishonest server has changed."""
    text, arrays = write_request(request)
    found = json.loads(text)
    if change is not None:
        change(found)
    letter = {"run": "r", "round": 0, "request": json.dumps(found)}
    return site.handle("answer", letter, arrays)


LOCAL = make_request(LocalDP(1.0, mode="faithful"))


def set_oracle(**values):
    def change(found):
        found["randomizer"]["oracles"]["level_7"].update(values)

    return change


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"domain": 100}, "has 256 cells, the report is on 100"),
        ({"domain": 255}, "has 256 cells, the report is on 255"),
        ({"domain": 10**15}, "has 256 cells"),
        ({"domain": 0}, "has 256 cells"),
        ({"domain": -1}, "has 256 cells"),
        ({"kind": "rr"}, "randomised response of one bit"),
        ({"kind": "rr", "domain": 1}, "has 256 cells"),
        ({"kind": "grr", "eps": 1e-300}, "would carry no information"),
        ({"eps": 1e4}, "must be between 0 and 700"),
        ({"eps": -1.0}, "not positive"),
    ],
)
def test_reports_must_be_on_the_cells_of_the_block(values, words):
    """Else a cell beyond them raised an error: an exact comparison for eps of 1e-7."""
    replies = [
        ask(site_with(label, score), LOCAL, set_oracle(**values))
        for label, score in ((0, -9.0), (1, 9.0))
    ]
    assert replies[0] == replies[1]
    assert words in replies[0][0]["refused"]
    sites = [site_with(1)]
    ask(sites[0], LOCAL, set_oracle(**values))
    assert not len(sites[0]._ledger)


def test_reports_are_of_clients_with_one_entry():
    """One report for each row, or of two entries, is paid for as one."""

    def by_row(found):
        found["unit"] = "example"

    def two_entries(found):
        found["algorithm"]["clip"] = 2.0

    for change, words in (
        (by_row, "local reports need the unit 'client'"),
        (two_entries, "is not a count of one entry"),
    ):
        site = site_with(1)
        assert words in ask(site, LOCAL, change)[0]["refused"]
        assert not len(site._ledger)


def test_an_honest_report_is_answered():
    site = site_with(1)
    reply, words = ask(site, LOCAL)
    assert reply == {"run": "r", "round": 0} and words["level_7"].shape == (1, 256)
    assert site._ledger.spent() == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", [ScoreCounts((2,), clip=1.0), COUNTS])
@pytest.mark.parametrize("classes", [[0, 1, 2], [0, 1, 2, 3], ["a", "b", "c"]])
def test_classes_must_be_those_of_the_algorithm(algorithm, classes):
    """Else a refusal came if, and only if, a row of the third class was there."""
    request = make_request(SourceDP(1.0, mode="faithful"), algorithm)

    def change(found):
        found["reading"].update(classes=classes, n_columns=len(classes))

    replies = []
    for label in (0, 1, 2):
        rows = SiteRows(np.zeros((1, 3)), np.array([label]))
        site = Site("a", rows, policy=SitePolicy(noise="own"))
        replies.append(ask(site, request, change))
    assert replies[0] == replies[1] == replies[2]
    assert "refused" in replies[0][0]


@pytest.mark.parametrize("classes", [[0, 5], [5, 6], [1, 0], ["0", "1"], [0.5, 1.5]])
def test_classes_that_rows_do_not_have_change_nothing_visible(classes):
    request = make_request(SourceDP(1.0, mode="faithful"))

    def change(found):
        found["reading"].update(classes=classes)

    def seen(label):
        site = site_with(label)
        reply, words = ask(site, request, change)
        shapes = {name: (word.shape, word.dtype) for name, word in words.items()}
        return reply, shapes, [record["event"] for record in site._ledger.records()]

    assert seen(0) == seen(1) == seen(7)
    assert seen(0)[0] == {"run": "r", "round": 0}


@pytest.mark.parametrize("n_units", [0, 1, 3, 10**9])
def test_a_number_of_rows_cannot_be_asked_for(n_units):
    request = make_request(SourceDP(1.0, mode="faithful"))

    def change(found):
        found["n_units"] = n_units

    reply, _ = ask(site_with(1), request, change)
    assert "unknown field 'n_units'" in reply["refused"]


def test_masked_sums_of_rows_do_not_depend_on_what_the_server_expects():
    """The number of rows of each site was found by halving n_units."""
    fed = make_federation(4, 400, 3, dtype=np.float64, random_state=0)
    sites = {
        n: Site(n, SiteRows(*rows)) for n, rows in zip("abcd", fed.clients, strict=True)
    }
    for n_rows in (1, 50, 10**6):
        calibrator = FedTempCalibrator(
            privacy=CentralDP(1.0, unit="example"),
            classes=[0, 1, 2],
            runner=FederatedRunner(secure=True),
        )
        remote = RemoteClients(InProcessTransport(sites), n_rows=n_rows)
        history = calibrator.fit(remote).history_
        assert all(record.n_clients == 4 and not record.faults for record in history)


def codec_change(**values):
    def change(found):
        block = next(iter(found["codec"].values()))
        target = block if "step" in values else block["spec"]
        target.update(values)

    return change


@pytest.mark.parametrize(
    "values",
    [
        {"clip": 2.0},
        {"clip": 1.0000001},
        {"clip": 0.5},
        {"clip": None},
        {"shape": [2, 64]},
        {"shape": [256]},
        {"shape": [2, 2**40]},
        {"kind": "real"},
        {"norm": "l2"},
        {"groups": 2},
        {"weight": 2.0},
        {"step": 1e-12},
        {"step": None},
    ],
    ids=str,
)
def test_codes_must_be_those_of_the_algorithm(values):
    request = make_request(SourceDP(1.0, mode="faithful"))
    replies = [ask(site_with(label), request, codec_change(**values)) for label in "01"]
    replies += [
        ask(site_with(label), request, codec_change(**values)) for label in (0, 1)
    ]
    assert all(reply == replies[0] for reply in replies)
    assert "refused" in replies[0][0]


POSTERIOR = make_request(
    CentralDP(1.0), TemperaturePosterior(), Reading((0, 1), "logits")
)
START = dict(POSTERIOR.broadcast)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {**START, "log_beta": np.zeros(3)},
        {**START, "log_beta": np.asarray(0)},
        {**START, "log_beta": np.asarray(20.0)},
        {**START, "clip": np.asarray(0.0)},
        {**START, "bound": np.asarray(-1.0)},
        {**START, "more": np.zeros(2)},
        {"log_beta": np.asarray(0.0)},
    ],
)
def test_broadcasts_must_be_those_of_the_algorithm(arrays):
    from dataclasses import replace

    request = replace(POSTERIOR, broadcast=arrays)
    site = site_with(1, policy=SitePolicy(allow_plain=True))
    text = ask(site, request)[0]["refused"]
    assert text.startswith("the algorithm does not fit the request: array")


@pytest.mark.parametrize("value", [1e300, -1e300, 9.2, -9.2, 0.0])
def test_broadcasts_of_odd_values_change_nothing_visible(value):
    from dataclasses import replace

    arrays = {"clip": np.asarray(1e-12), "bound": np.asarray(0.0)}
    arrays["log_beta"] = np.asarray(value)
    request = replace(POSTERIOR, broadcast=arrays)
    seen = []
    for label, score in ((0, 0.0), (1, 700.0), (9, np.nan)):
        site = site_with(label, score, policy=SitePolicy(allow_plain=True))
        reply, words = ask(site, request)
        seen.append((reply, {n: (w.shape, w.dtype) for n, w in words.items()}))
    assert seen[0] == seen[1] == seen[2]


def test_a_claim_pays_for_one_method_of_one_run():
    site = site_with(1, policy=SitePolicy(allow_plain=True))
    text, arrays = write_request(POSTERIOR)
    for index in range(2):
        site.handle("answer", {"run": "r", "round": index, "request": text}, arrays)
    assert len(site._ledger) == 1
    other = json.loads(text)
    other["algorithm"]["signal"] = 26.0
    letter = {"run": "r", "round": 2, "request": json.dumps(other)}
    site.handle("answer", letter, arrays)
    assert len(site._ledger) == 2


# --------------------------------------------------------------------- one unfit row


def observable(history, report):
    """What a fit shows, its random numbers aside."""
    rounds = [
        (
            record.round,
            record.n_clients,
            record.n_cohorts,
            record.bytes_up,
            record.bytes_down,
            record.faults,
            {name: value.shape for name, value in record.total.items()},
        )
        for record in history
    ]
    return rounds, report.eps, report.n_clients, report.assumptions


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("odd", ["label", "nan", "none"])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_one_unfit_row_changes_nothing_observable_of_a_private_fit(
    secure, odd, unit, recwarn
):
    fed = make_federation(4, 400, 3, dtype=np.float64, random_state=0)
    clients = [(Z.copy(), y.copy()) for Z, y in fed.clients]
    if odd == "label":
        clients[1][1][0] = 17
    if odd == "nan":
        clients[1][0][0] = np.nan
    policy = SitePolicy(allow_plain=not secure)
    ledgers = [SiteLedger(budget=(5.0, 1e-5)) for _ in clients]
    sites = {
        n: Site(n, SiteRows(*rows), policy=policy, ledger=ledger)
        for n, rows, ledger in zip("abcd", clients, ledgers, strict=True)
    }
    fitted = FedTempCalibrator(
        privacy=CentralDP(2.0, delta=1e-6, unit=unit),
        classes=[0, 1, 2],
        runner=FederatedRunner(secure=secure),
    ).fit(RemoteClients(InProcessTransport(sites), n_rows=400))
    rounds, eps, n_units, _ = observable(fitted.history_, fitted.privacy_)
    assert eps == 2.0 and n_units == (4 if unit == "client" else 400)
    assert [row[1] for row in rounds] == [4] * len(rounds)
    assert all(row[5] == {} for row in rounds)
    records = [ledger.records() for ledger in ledgers]
    assert all(len(own) == 1 for own in records)
    assert len({json.dumps(own[0]["event"]) for own in records}) == 1
    assert not [w for w in recwarn if "sum does not include all" in str(w.message)]


@pytest.mark.parametrize("input_type", ["proba", "log_proba"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_row_at_the_limit_is_read_alike_beside_an_unfit_row(order, input_type):
    """Arrays by column were summed otherwise once a row was left out.

    A row just inside the tolerance was then outside of it, and took all rows with it.
    """
    rng = np.random.default_rng(3)
    rows = rng.dirichlet(np.ones(9), size=500)
    rows *= (1 + _SUM_TOLERANCE) / rows.sum(axis=1, keepdims=True)
    if input_type == "log_proba":
        rows = np.log(rows)
    reading = Reading(tuple(range(9)), input_type)

    def read(scores):
        labels = np.zeros(len(scores), dtype=int)
        own = SiteRows(np.asarray(scores, order=order), labels)
        return reading.read(own, "a").clients

    alone = [read(row[None]) for row in rows]
    fits = [one.n_rows == 1 for one in alone]
    assert 0 < sum(fits) < len(rows)
    together = read(np.vstack([rows, np.full((1, 9), np.nan)]))
    assert together.n_rows == sum(fits)
    expected = np.vstack([one.rows for one in alone if one.n_rows])
    np.testing.assert_array_equal(together.rows, expected)
    np.testing.assert_array_equal(read(rows[fits]).rows, expected)


def test_the_site_is_told_what_others_are_not(caplog):
    site = site_with(17)
    with caplog.at_level(logging.WARNING, logger="skfedcal.site"):
        ask(site, make_request(SourceDP(1.0, mode="faithful")))
    assert "1 of 1 rows do not fit the request and count as zero" in caplog.text
    assert "17" not in caplog.text  # a log is read by more people than rows are


# ------------------------------------------------------------- seeded noise of a server


@pytest.mark.parametrize(
    ("model", "secure"),
    [
        (CentralDP(1.0, delta=1e-5), False),
        (CentralDP(1.0, delta=1e-5), True),
        (DistributedDP(1.0, delta=1e-5, mode="faithful"), True),
    ],
)
@pytest.mark.parametrize("random_state", [None, 0])
def test_sites_book_seeded_noise_as_a_simulation(model, secure, random_state):
    fed = make_federation(4, 400, 3, dtype=np.float64, random_state=0)
    ledgers = [SiteLedger(budget=(5.0, 1e-5)) for _ in fed.clients]
    sites = {
        n: Site(n, SiteRows(*rows), policy=SitePolicy(allow_plain=True), ledger=ledger)
        for n, rows, ledger in zip("abcd", fed.clients, ledgers, strict=True)
    }
    fitted = FedTempCalibrator(
        privacy=model,
        classes=[0, 1, 2],
        random_state=random_state,
        runner=FederatedRunner(secure=secure),
    ).fit(RemoteClients(InProcessTransport(sites)))
    modes = {record["mode"] for own in ledgers for record in own.records()}
    seeded = random_state is not None
    assert fitted.privacy_.seeded == seeded
    assert modes == {"simulation" if seeded else "secure"}
    relations = {r["details"]["adjacency"] for own in ledgers for r in own.records()}
    assert relations == {fitted.privacy_.adjacency} == {"zero-out"}


@pytest.mark.parametrize(
    ("model", "relation"),
    [
        (SourceDP(1.0, mode="faithful"), "zero-out"),
        (LocalDP(1.0, mode="faithful"), "any two values"),
    ],
)
def test_the_ledger_of_a_site_names_the_relation_of_its_cost(model, relation):
    site = site_with(1)
    reply, _ = ask(site, make_request(model))
    assert "refused" not in reply
    (record,) = site.ledger.records()
    assert record["details"]["adjacency"] == relation
    assert record["event"]["eps"] == pytest.approx(1.0)


def test_noise_for_a_wider_relation_is_booked_for_the_relation_of_the_site():
    """Twice the noise, as 'replace' needs it, is half of eps under zero-out."""
    costs = [
        answer_cost(
            make_request(DistributedDP(1.0, mode="faithful", adjacency=name)), 4
        )
        for name in ("zero-out", "replace")
    ]
    events = [cost.event.eps for cost in costs]
    assert events[0] == pytest.approx(1.0) and events[1] == pytest.approx(0.5)


def test_a_strict_ledger_refuses_seeded_noise_by_name(tmp_path):
    ledger = SiteLedger(tmp_path / "ledger.jsonl", budget=(5.0, 1e-5))
    policy = SitePolicy(allow_plain=True)
    rows = SiteRows(np.zeros((1, 2)), np.array([0]))
    site = Site("a", rows, policy=policy, ledger=ledger)
    from dataclasses import replace

    reply, _ = ask(site, replace(POSTERIOR, simulated=True))
    assert "noise from a seed (random_state) protects no client" in reply["refused"]
    assert not len(ledger)


# --------------------------------------------------------------- limits of work, memory

BOMBS = {
    "levels": lambda found: found["algorithm"].update(levels=[10**10]),
    "level": lambda found: found["algorithm"].update(levels=[40]),
    "many levels": lambda found: found["algorithm"].update(levels=list(range(60))),
    "shape": lambda found: found["codec"]["level_7"]["spec"].update(shape=[2, 10**12]),
    "clients": lambda found: found.update(n_clients=2**61),
    "step": lambda found: found["codec"]["level_7"].update(step=1e-300),
    "scale": lambda found: found["randomizer"]["scales"].update(level_7=1e300),
    "small scale": lambda found: found["randomizer"]["scales"].update(level_7=1e-300),
    "classes": lambda found: found["reading"].update(classes=list(range(90_000))),
    "claim": lambda found: found.update(
        claim={
            "kind": "sampled_gaussian",
            "noise_multiplier": 1e3,
            "sampling_rate": 1e-4,
            "n_rounds": 10**9,
            "eps_slack": 0.0,
            "delta_slack": 0.0,
        }
    ),
    "run": lambda found: found.update(run="x" * 10**5),
    "examples": lambda found: found["algorithm"].update(max_examples=-(10**9)),
    "network": lambda found: found.update(
        algorithm={
            "class": "network.average/1",
            "hidden": [10**6] * 1000,
            "epochs": 10**9,
            "batch_size": 1,
            "learning_rate": 0.1,
            "order_preserving": True,
            "clip": 1.0,
            "seed": 0,
            "n_rounds": 1,
        }
    ),
    "grid": lambda found: found.update(
        algorithm={
            "class": "temperature.grid/1",
            "n_points": 10**6,
            "clip": None,
            "n_rounds": 1,
        }
    ),
    "bins": lambda found: found.update(
        algorithm={
            "class": "top_bins.counts/1",
            "n_bins": 400_000,
            "max_examples": 1,
            "clip": 1.0,
            "weighted": False,
            "n_rounds": 1,
        }
    ),
    "epochs": lambda found: found.update(
        algorithm={
            "class": "network.average/1",
            "hidden": [1000, 1000],
            "epochs": 100,
            "batch_size": 1,
            "learning_rate": 0.1,
            "order_preserving": True,
            "clip": 1.0,
            "seed": 0,
            "n_rounds": 1,
        }
    ),
    "local steps": lambda found: found.update(
        algorithm={
            "class": "scaling.average/1",
            "family": {"class": "scaling.vector/1"},
            "local_solver": "gd",
            "local_iter": 10**12,
            "learning_rate": 0.1,
            "clip": 1.0,
            "n_rounds": 1,
        }
    ),
}


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (TemperatureGrid(n_points=10_001), "n_points"),
        (ClassHistograms(n_bins=10_001), "n_bins"),
        (TopBinCounts(n_bins=10_001), "n_bins"),
        (ClassResiduals(n_bins=10_001), "n_bins"),
        (EceGrid(-1.0, 1.0, n_bins=10_001), "n_bins"),
        (TemperatureSearch(-1.0, 1.0, n_bins=10_001), "n_bins"),
        (GapParts(-1.0, 1.0, n_points=10_001), "n_points"),
        (LocalAverage(VectorMap(), local_iter=10_001), "local"),
        (LocalAverage(MatrixMap(), local_iter=5_000), "local"),
        (MLPAveraging(epochs=101), "epochs"),
        (MLPAveraging(hidden=(1,) * 17), "hidden"),
        (MLPAveraging(hidden=(0,)), "hidden"),
        (MLPAveraging(batch_size=0), "batch_size"),
        (MLPAveraging(hidden=(2000, 2000), epochs=10), "epochs"),
        (ScoreCounts(levels=(63,)), "levels"),
        (ScoreCounts(levels=(2, 2)), "levels"),
        (ScoreCounts(levels=()), "levels"),
    ],
    ids=repr,
)
def test_work_is_limited_by_the_algorithm_itself(algorithm, name):
    n_classes = 2 if isinstance(algorithm, ScoreCounts) else 200
    with pytest.raises(ValueError, match=name):
        broadcast_forms(algorithm, n_classes)


@pytest.mark.parametrize("name", BOMBS)
def test_requests_for_too_much_are_refused(name):
    request = make_request(SourceDP(1.0, mode="faithful"))
    reply, _ = ask(site_with(1), request, BOMBS[name])
    assert "refused" in reply


def test_and_are_refused_before_anything_is_allocated():
    """A process of 400 MB of address space beyond numpy's refuses all of them."""
    code = (
        "import resource, sys\n"
        "sys.path.insert(0, %r)\n"
        "from tests.federation import test_boundary as t\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + 400 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "request = t.make_request(t.SourceDP(1.0, mode='faithful'))\n"
        "for name, bomb in t.BOMBS.items():\n"
        "    reply, _ = t.ask(t.site_with(1), request, bomb)\n"
        "    assert 'MemoryError' not in reply['refused'], name\n"
        "print('all refused')\n"
    )
    if not hasattr(resource, "RLIMIT_AS"):
        pytest.skip("no limit of memory on this system")
    root = str(__file__).rsplit("/tests/", 1)[0]
    out = subprocess.run(
        [sys.executable, "-c", code % root], capture_output=True, text=True, check=False
    )
    assert out.stdout.strip() == "all refused", out.stderr


@pytest.mark.parametrize("part", [0, 2, 3, 4, 5, 6, 7, 9, 16, 64])
@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        (TemperatureNewton(), "stage"),
        (PooledFit(VectorMap()), "stage"),
        (BiasTemperatureNewton(), "sample"),
    ],
    ids=["temperature", "vector", "bias"],
)
def test_a_server_does_not_choose_which_part_of_the_rows_is_summed(
    algorithm, key, part
):
    """Differences of sums over two parts often hold a single row."""
    if key == "stage":
        asked = {"beta": np.asarray(1.0), "precise": np.asarray(True)}
    else:
        asked = {"points": np.zeros((9, 4)), "started": np.asarray(False)}
    check_broadcast(algorithm, {**asked, key: np.asarray(8)}, 3)
    with pytest.raises(ValueError, match=f"array '{key}' must be"):
        check_broadcast(algorithm, {**asked, key: np.asarray(part)}, 3)


@pytest.mark.parametrize("kind", [FedVectorCalibrator, FedBiasTempCalibrator])
def test_sites_that_state_their_rows_give_the_bits_of_one_process(kind):
    """Also where a fit starts from a part of the rows, or by steps."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(4000, 10))
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    owner = np.arange(4000) % 3
    policy = SitePolicy(allow_plain=True)
    sites = {
        name: Site(
            name, SiteRows(logits[owner == i], labels[owner == i]), policy=policy
        )
        for i, name in enumerate("abc")
    }
    here = kind().fit(logits, labels, client_ids=owner)
    there = kind(classes=range(10)).fit(
        RemoteClients(InProcessTransport(sites), n_rows=4000)
    )
    assert len(here.history_) == len(there.history_)
    for a, b in zip(here.history_, there.history_, strict=True):
        for name, total in a.total.items():
            np.testing.assert_array_equal(total, b.total[name], strict=True)

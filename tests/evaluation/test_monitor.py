"""CalibrationMonitor: one payment for all periods, noise as stated, honest alarms."""

import copy
import json
import os
import pickle
import signal
import warnings
from functools import reduce

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import binom, chi2
from sklearn.metrics import log_loss

from skfedcal import (
    CalibrationMonitor,
    CentralDP,
    FedAutoCalibrator,
    FederatedRunner,
    ScoreHistogram,
)
from skfedcal.evaluation.drift import alarm_threshold, find_alarms
from skfedcal.evaluation.period_counts import Period
from skfedcal.exceptions import (
    BudgetExceededError,
    CheckpointError,
    NotEnoughClientsError,
    PrivacyWarning,
    SiteRefusalError,
)
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
    collecting,
)
from skfedcal.methods.score_curves.rounds import ClassScoreCounts
from skfedcal.privacy import DistributedDP, LocalDP, PrivacyLedger, samplers
from skfedcal.privacy.site_ledger import SiteLedger

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)
CHANCE = 1e-6


def week(seed, n=200, temperature=1.0, n_classes=4, scale=2.0):
    """Logits, labels that are less sure by a temperature, and one client per row."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * scale
    proba = np.exp(logits / temperature)
    proba /= proba.sum(axis=1, keepdims=True)
    labels = (proba.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return logits, np.minimum(labels, n_classes - 1), np.arange(n)


def started(eps=3.0, **options):
    options = {"classes": range(4), "max_examples_per_client": 1} | options
    return CalibrationMonitor(eps, **options)


def run(monitor, seeds, **options):
    for seed in seeds:
        logits, labels, ids = week(seed, **options)
        monitor.update(logits, labels, client_ids=ids)
    return monitor


def totals(monitor):
    return np.array([one.totals for one in monitor._periods])


# ------------------------------------------------------------------------- the release


def test_exact_periods_are_the_histograms_of_their_rows():
    monitor = run(started(None, periods=3), range(3))
    each = [
        ScoreHistogram.fit(
            *week(seed)[:2],
            client_ids=week(seed)[2],
            classes=range(4),
            kind="top",
            height=6,
            max_examples_per_client=1,
            population="rows",
        )
        for seed in range(3)
    ]
    for i, one in enumerate(each):
        assert np.array_equal(monitor.histogram(i).counts_, one.counts_)
        assert monitor.estimate("ece", i) == pytest.approx(float(one.ece()))
    together = reduce(ScoreHistogram.merge, each)
    assert np.array_equal(monitor.histogram().counts_, together.counts_)
    logits, labels, _ = map(np.concatenate, zip(*map(week, range(3)), strict=True))
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = proba.argmax(axis=1) == labels
    assert monitor.estimate("accuracy") == pytest.approx(right.mean())
    gap = monitor.estimate("gap")
    assert abs(gap - (proba.max(axis=1).mean() - right.mean())) <= gap.discretisation
    assert gap.low < gap < gap.high
    with pytest.raises(ValueError, match="All 3 periods are over"):
        run(monitor, [3])


def test_the_ledger_is_debited_once_and_before_any_noise(monkeypatch, tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl", budget=(3.0, 1e-5))
    path, seen = tmp_path / "monitor.json", []
    draw = samplers.discrete_gaussian

    def watched(size, entropy):
        seen.append(len(ledger))
        return draw(size, entropy)

    monkeypatch.setattr(samplers, "discrete_gaussian", watched)
    run(started(ledger=ledger, path=path), range(2))
    monitor = run(CalibrationMonitor.load(path, ledger=ledger), range(2, 4))
    assert seen == [1] * 8  # two levels in each of four periods
    (record,) = ledger.records()
    assert record["label"] == "CalibrationMonitor"
    assert record["details"]["n_rounds"] == 52
    assert ledger.spent() == pytest.approx(3.0, rel=1e-6)
    assert monitor.privacy_.eps == 3.0 and monitor.privacy_.secure
    # A second monitor is not covered by the budget, and changes nothing.
    second = started(ledger=ledger, path=tmp_path / "second.json")
    with pytest.raises(BudgetExceededError):
        run(second, [0])
    assert second.n_periods_ == 0 and len(ledger) == 1
    assert CalibrationMonitor.load(tmp_path / "second.json").n_periods_ == 0


def test_noise_of_all_periods_has_the_stated_eps_for_another_accountant():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    monitor = run(started(), range(2))
    # A client is in one cell of each of two levels, in every period.
    sigma = np.sqrt(monitor._periods[0].laws[:, 1])
    assert sigma[0] == pytest.approx(sigma[1])
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma[0] / np.sqrt(2)), 52)
    account = pld.PLDAccountant(value_discretization_interval=1e-4).compose(event)
    eps = account.get_epsilon(monitor.privacy_.delta)
    assert 2.95 < eps < 3.0 * (1 + 1e-3)


def test_a_client_in_all_periods_changes_no_more_than_is_accounted():
    one, other = started(random_state=5), started(random_state=5)
    run(one, range(6))
    for seed in range(6):
        logits, labels, ids = week(seed)
        # Client 0 brings 50 rows in every period, all of one cell.
        logits, labels = np.append(logits, [[9.0, 0, 0, 0]] * 50, 0), np.append(
            labels, [0] * 50
        )  # fmt: skip
        other.update(logits, labels, client_ids=np.append(ids, [0] * 50))
    # The same noise: what differs is the contribution of the client. Its old row may
    # go and a new one come, so that the distance to zero is half of it, squared.
    moved = totals(one) - totals(other)
    norms = np.sqrt((moved**2).sum(axis=1))
    assert (norms <= 2 + 1e-3).all() and norms.max() > 1
    law = one._periods[0].laws[:, 1]
    mu = np.sqrt(52 * 2 / law[0])
    assert mu == pytest.approx(one.privacy_.mu, rel=1e-3)


def test_noise_is_independent_between_periods_and_has_its_variance():
    n = 40
    private, exact = started(random_state=3, periods=n), started(None, periods=n)
    for monitor in (private, exact):
        for _ in range(n):
            logits, labels, ids = week(0, n=50)
            monitor.update(logits, labels, client_ids=ids)
    leaves = 128
    noise = totals(private)[:, -leaves:] - totals(exact)[:, -leaves:]
    sigma = np.sqrt(private._periods[0].laws[1, 1])
    square = float((noise**2).sum() / sigma**2)
    assert chi2.ppf(CHANCE / 2, noise.size) < square < chi2.isf(CHANCE / 2, noise.size)
    lagged = (noise[1:] * noise[:-1]).sum() / sigma**2
    assert abs(lagged) < 5 * np.sqrt(noise[1:].size)
    total = noise.sum(axis=0)
    square = float((total**2).sum() / (n * sigma**2))
    assert chi2.ppf(CHANCE / 2, leaves) < square < chi2.isf(CHANCE / 2, leaves)
    # The error of the year is that of one release with the whole budget: an
    # optimum, see the notes of the class.
    single = CentralDP(3.0).strength(50)
    whole = np.sqrt(2) * n / single
    assert np.sqrt(n) * sigma == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize(
    "model",
    [
        DistributedDP(5.0, n_min=150),
        DistributedDP(5.0, mode="faithful"),
        CentralDP(5.0, unit="example"),
    ],
)
def test_other_privacy_models(model, tmp_path):
    options = {"max_examples_per_client": None} if model.unit == "example" else {}
    path = tmp_path / "monitor.json"
    run(started(None, privacy=model, periods=4, path=path, **options), range(2))
    monitor = run(CalibrationMonitor.load(path), [2])
    assert monitor.privacy_.eps == 5.0 and monitor.privacy_.unit == model.unit
    assert len(monitor.series("accuracy").period) == 3
    assert monitor.estimate("accuracy").se_privacy > 0


def test_a_binary_monitor_and_its_classes():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=400)
    labels = np.where(rng.random(400) < 1 / (1 + np.exp(-odds)), "yes", "no")
    monitor = CalibrationMonitor(periods=2, kind="binary", classes=["no", "yes"])
    monitor.update(odds, labels, client_ids=np.arange(400))
    right = (odds > 0) == (labels == "yes")
    assert monitor.estimate("accuracy") == pytest.approx(right.mean())
    assert monitor._means()["accuracy"][0][0] == pytest.approx(right.mean())
    monitor.update(odds[:5], ["no"] * 5)
    assert monitor.histogram().classes == ["no", "yes"]
    turned = CalibrationMonitor(
        periods=2, kind="binary", classes=["no", "yes"], pos_label="no"
    )
    turned.update(-odds, labels, client_ids=np.arange(400))
    assert turned.histogram().classes == ["yes", "no"]
    assert turned.estimate("accuracy") == pytest.approx(right.mean())


# ---------------------------------------------------------------- files and interrupts


def test_a_monitor_that_was_loaded_goes_on_as_if_nothing_had_happened(tmp_path):
    path = tmp_path / "monitor.json"
    options = {"random_state": 7, "periods": 6}
    whole = run(started(**options), range(4))
    run(started(path=path, **options), range(2))
    found = run(CalibrationMonitor.load(path), range(2, 4))
    assert np.array_equal(totals(whole), totals(found))
    assert repr(found) == repr(whole) and found.summary() == whole.summary()
    assert "SIMULATED" in repr(found)
    assert CalibrationMonitor.load(path).privacy_.n_rounds == 6


class Breaks:
    """Engine that does something before it would answer."""

    def __init__(self, action, n=200):
        self.action, self.n = action, n

    def ids(self):
        return list(range(self.n))

    def total(self, request, cohort):
        self.action()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_period_is_never_drawn_again(tmp_path):
    path, ledger = tmp_path / "monitor.json", PrivacyLedger(tmp_path / "ledger.jsonl")
    run(started(path=path, ledger=ledger), [0])
    pid = os.fork()
    if not pid:
        broken = FederatedRunner(backend=Breaks(lambda: os.kill(os.getpid(), 9)))
        monitor = CalibrationMonitor.load(path, ledger=ledger, runner=broken)
        run(monitor, [1])
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == -signal.SIGKILL
    with pytest.warns(PrivacyWarning, match="period 2 was interrupted"):
        monitor = CalibrationMonitor.load(path, ledger=ledger)
    run(monitor, [2])
    assert monitor.names_ == ["period 1", "period 2", "period 3"]
    assert monitor.series("gap").period.tolist() == [0, 2]
    assert "interrupted, without a result: period 2" in monitor.summary()
    assert len(ledger) == 1
    with pytest.raises(ValueError, match="none of these has a result"):
        monitor.estimate("ece", 1)


def test_an_interrupt_and_an_error(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    def too_few():
        raise NotEnoughClientsError("3 clients answered")

    monitor = started(path=tmp_path / "monitor.json")
    for action, error, over in (
        (too_few, NotEnoughClientsError, 0),
        (interrupt, KeyboardInterrupt, 0),
    ):
        monitor.runner = FederatedRunner(backend=Breaks(action))
        with pytest.raises(error):
            run(monitor, [0])
        assert monitor.n_periods_ == over
    monitor.runner = None
    with pytest.warns(PrivacyWarning, match="period 1 was interrupted"):
        run(monitor, [1])
    assert monitor.n_periods_ == 2 and len(monitor.ledger) == 1
    # Clients that draw noise themselves are not asked again.
    monitor = started(None, privacy=DistributedDP(5.0, mode="faithful"))
    monitor.runner = FederatedRunner(backend=Breaks(too_few))
    with pytest.raises(NotEnoughClientsError):
        run(monitor, [0])
    assert monitor.n_periods_ == 1


@pytest.mark.parametrize(
    "model", [CentralDP(5.0), DistributedDP(5.0), DistributedDP(5.0, mode="faithful")]
)
def test_a_period_whose_noise_was_drawn_is_over(model, monkeypatch, tmp_path):
    drawn = []
    real = ClassScoreCounts.update

    def broken(self, state, total, n_clients):
        drawn.append(state.rounds)
        if len(drawn) == 2:
            raise OSError("after the noise")
        return real(self, state, total, n_clients)

    monkeypatch.setattr(ClassScoreCounts, "update", broken)
    monitor = started(None, privacy=model, periods=3, path=tmp_path / "monitor.json")
    run(monitor, [0])
    with pytest.raises(OSError, match="after the noise"):
        run(monitor, [1])
    assert monitor.n_periods_ == 2 and not monitor._asking
    run(CalibrationMonitor.load(tmp_path / "monitor.json", ledger=monitor.ledger), [2])
    # Every period once, and no more periods than are paid for.
    assert drawn == [0, 1, 2] and len(monitor.ledger) == 1
    loaded = CalibrationMonitor.load(tmp_path / "monitor.json", ledger=monitor.ledger)
    assert loaded.series("gap").period.tolist() == [0, 2]
    with pytest.raises(ValueError, match="no further one is paid"):
        run(loaded, [3])


def test_a_period_that_failed_before_anybody_was_asked_is_not_lost(monkeypatch):
    monitor = run(started(None, privacy=DistributedDP(5.0, mode="faithful")), [0])

    def refuse(*_):
        raise NotEnoughClientsError("two sites do not answer the check")

    monkeypatch.setattr(collecting._Rounds, "_check_sites", refuse)
    with pytest.raises(NotEnoughClientsError, match="the check"):
        run(monitor, [1])
    monkeypatch.undo()
    assert run(monitor, [1]).n_periods_ == 2 and len(monitor.series().period) == 2


def test_failures_on_purpose_are_paid_by_the_sites(tmp_path):
    # A dishonest server drops an answer, again and again, to average the noise.
    pytest.importorskip("cryptography")
    logits, labels, _ = week(0)
    answers, ledgers, sites = [], [], {}

    def on_reply(kind, name, reply):
        if kind == "masked" and name == "0" and "refused" not in reply[0]:
            answers.append(len(ledgers[0]))
        return None if name == "3" and kind == "masked" else reply

    for i in range(4):
        ledgers.append(SiteLedger(tmp_path / f"{i}.jsonl", budget=(5.0, 1e-4)))
        sites[str(i)] = Site(
            str(i),
            SiteRows(logits[i::4], labels[i::4]),
            policy=SitePolicy(noise="shared"),
            ledger=ledgers[i],
        )
    remote = RemoteClients(InProcessTransport(sites, on_reply=on_reply))
    model = DistributedDP(3.0, 1e-4, n_min=3, mode="faithful")
    runner = FederatedRunner(secure=True, min_clients=4)
    for _ in range(9):
        monitor = started(None, privacy=model, periods=2, runner=runner)
        for over in (1, 2):
            before = len(answers)
            with pytest.raises((NotEnoughClientsError, SiteRefusalError)):
                monitor.update(remote)
            if len(answers) == before:
                break
            # Asked once in each period, which is over without a result.
            assert len(answers) == before + 1 and monitor.n_periods_ == over
        else:
            continue
        break
    else:
        pytest.fail(f"{len(answers)} answers, and no site refuses")
    # Every answer was debited before it was given; the budget ends them.
    assert answers == list(range(1, len(answers) + 1)) and len(answers) >= 2
    assert ledgers[0].spent() <= 5.0


def test_no_copy_can_release_a_period_twice():
    monitor = run(started(), [0])
    assert copy.copy(monitor) is monitor and copy.deepcopy([monitor])[0] is monitor
    with pytest.raises(pickle.PicklingError, match="Use save and load"):
        pickle.dumps(monitor)

    def again():
        run(monitor, [1])

    monitor.runner = FederatedRunner(backend=Breaks(again))
    with pytest.raises(CheckpointError, match="by another thread"):
        run(monitor, [1])
    monitor.runner = None
    assert run(monitor, [1]).n_periods_ == 2


def test_files_that_were_changed_are_refused(tmp_path):
    path = tmp_path / "monitor.json"
    monitor = run(started(path=path), [0])
    with pytest.raises(ValueError, match="is kept in"):
        monitor.save(tmp_path / "other.json")
    with pytest.raises(FileExistsError, match=r"CalibrationMonitor\.load"):
        started(path=path)
    run(CalibrationMonitor.load(path), [1])
    with pytest.raises(CheckpointError, match="changed by another process"):
        run(monitor, [1])
    good = json.loads(path.read_text())
    for change in (
        {"periods": good["periods"][:1]},
        {"run_id": "x"},
        {"settings": good["settings"] | {"periods": 520}},
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ValueError, match="edited or damaged"):
            CalibrationMonitor.load(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a monitor"):
        CalibrationMonitor.load(path)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"periods": 1}, ValueError, "periods"),
        ({"kind": "ovr"}, ValueError, "kind"),
        ({"levels": (6, 2)}, ValueError, "increasing depths"),
        ({"watch": "gap"}, TypeError, "list of metrics"),
        ({"watch": ["ece"]}, ValueError, "watch"),
        ({"false_alarm_rate": 0}, ValueError, "false_alarm_rate"),
        ({"eps": 1.0, "privacy": CentralDP(1.0)}, ValueError, "put the budget"),
        ({"privacy": LocalDP(1.0)}, ValueError, "Pass CentralDP"),
        ({"delta": 1e-5}, ValueError, "without eps"),
        ({"random_state": "a"}, (TypeError, ValueError), "random_state"),
        ({"runner": FederatedRunner(cohort="permuted")}, ValueError, "take part"),
        ({"runner": FederatedRunner(n_rounds=2)}, ValueError, "n_rounds"),
    ],
)
def test_wrong_settings(options, error, match):
    with pytest.raises(error, match=match):
        CalibrationMonitor(**options)


def test_wrong_questions():
    monitor = started()
    with pytest.raises(ValueError, match="none of these has a result"):
        monitor.estimate("ece")
    assert monitor.alarms_ == [] and len(monitor.series().period) == 0
    assert "nothing is released yet" in monitor.summary()
    run(monitor, [0])
    with pytest.raises(ValueError, match="metric"):
        monitor.estimate("auc")
    with pytest.raises(ValueError, match="periods"):
        monitor.estimate("ece", 4)
    logits, labels, ids = week(1, n_classes=6)
    with pytest.raises(ValueError, match=r"columns|classes"):
        monitor.update(logits, labels, client_ids=ids)
    assert monitor.n_periods_ == 1
    with pytest.warns(PrivacyWarning, match="one row of each client"):
        run(started(max_examples_per_client=None), [0])


# ------------------------------------------------------------------------------- sites


@pytest.mark.parametrize("secure", [False, True])
def test_sites_answer_period_by_period_and_pay_once(secure, tmp_path):
    if secure:
        pytest.importorskip("cryptography")
    parts = [np.arange(i, 200, 4) for i in range(4)]
    ledgers = [
        SiteLedger(tmp_path / f"{i}.jsonl", budget=(4.0, 1e-4)) for i in range(4)
    ]
    policy = SitePolicy(allow_plain=not secure)
    monitor = started(periods=5, path=tmp_path / "monitor.json")
    for seed in range(3):
        logits, labels, _ = week(seed)
        # Sites are started again in every period; their ledgers stay.
        sites = {
            str(i): Site(
                str(i),
                SiteRows(logits[rows], labels[rows]),
                policy=policy,
                ledger=ledgers[i],
            )
            for i, rows in enumerate(parts)
        }
        monitor = CalibrationMonitor.load(
            tmp_path / "monitor.json", runner=FederatedRunner(secure=secure)
        )
        monitor.update(RemoteClients(InProcessTransport(sites)))
    assert monitor.n_periods_ == 3 and monitor.histogram(-1).n_clients_ == 4
    assert [len(ledger) for ledger in ledgers] == [1] * 4
    local = [[(week(s)[0][r], week(s)[1][r]) for r in parts] for s in range(3)]
    same = started(None, periods=5)
    for clients in local:
        same.update(clients)
    # One row of each site: the same rows up to the salt, so the same number of them.
    assert same.histogram().n_examples_ == 12


# ------------------------------------------------------------------- alarms and answers


def test_a_change_is_found_and_a_new_reference_is_not_compared():
    options = {"random_state": 0, "periods": 12}
    monitor = run(started(**options), range(6), n=3000)
    assert monitor.alarms_ == []
    assert not monitor.recalibration().worth
    run(monitor, [6, 7], n=3000, temperature=1.5)
    first = monitor.alarms_[0]
    assert first.period == first.since == 6 and first.metric in monitor.watch
    gap = next(alarm for alarm in monitor.alarms_ if alarm.metric == "gap")
    assert gap.change > 0 and gap.statistic > gap.threshold
    assert "gap changed by +" in monitor.summary()
    advice = monitor.recalibration(eps=1.0)
    assert advice.worth and advice.gain.low > advice.loss
    assert str(advice).startswith("Recalibration is worth eps=1")
    assert not monitor.recalibration(eps=1e-6).worth
    other = run(started(**options), range(6), n=3000)
    logits, labels, ids = week(6, n=3000, temperature=1.5)
    other.update(logits, labels, client_ids=ids, new_reference=True)
    assert other.alarms_ == []


def test_alarms_of_known_values():
    quiet = [0.0] * 5
    assert find_alarms("x", quiet, [1.0] * 5, threshold=3.0) == []
    values = [0.0, 0.0, 0.0, 0.0, 10.0, 10.0, 10.0]
    (alarm,) = find_alarms("x", values, [1.0] * 7, threshold=4.0)
    assert (alarm.period, alarm.since, alarm.change) == (4, 4, 10.0)
    # Over the deviation of a value less the mean of four.
    assert alarm.statistic == pytest.approx(10 / np.sqrt(1.25))
    assert find_alarms("x", values, [1.0] * 7, threshold=4.0, restarts=[4]) == []
    missing = [0.0, np.nan, 0.0, 10.0]
    (alarm,) = find_alarms("x", missing, [1.0] * 4, threshold=4.0)
    assert alarm.period == 3
    slow = [0.0] * 16 + [2.0] * 8
    (alarm,) = find_alarms("x", slow, [1.0] * 24, threshold=3.5)
    assert alarm.since == 16 and 18 < alarm.period < 24


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_threshold_has_its_rate_whatever_the_variances_are(rate):
    rng = np.random.default_rng(99)
    years, weeks = 1000, 20
    threshold, found = alarm_threshold(weeks, rate), 0
    for _ in range(years):
        variances = rng.uniform(0.2, 5.0, weeks)
        values = rng.normal(3.0, np.sqrt(variances))
        found += bool(find_alarms("x", values, variances, threshold=threshold))
    # Chosen at most two standard errors of 100,000 simulated years too high.
    low = rate - 5 * np.sqrt(rate / 100_000)
    assert binom.ppf(CHANCE, years, low) <= found <= binom.isf(CHANCE, years, rate)


def shifted(seed, n, n_classes, temperature, shift):
    """Logits, and labels of log-odds that are less sure or shifted."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, n_classes))
    true = logits / temperature
    true[:, 0] += shift
    proba = softmax(true, axis=1)
    labels = (proba.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return logits, labels.clip(0, n_classes - 1)


def advice_and_gains(kind, n_classes, n, change, seed, eps):
    """Advice after four periods, and what a real private fit gains row by row."""
    classes, ids = range(n_classes), np.arange(n)
    monitor = started(3.0, periods=12, kind=kind, classes=classes, random_state=seed)
    for period in range(4):
        rows = shifted([seed, period], n, n_classes, *change)
        monitor.update(*rows, client_ids=ids)
    advice = monitor.recalibration(eps)
    fitted = FedAutoCalibrator(eps, classes=classes, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit(*shifted([seed, 9], n, n_classes, *change), client_ids=ids)
    logits, labels = shifted([seed, 10], 20_000, n_classes, *change)
    rows = np.arange(len(labels))
    after = np.log(np.maximum(fitted.predict_proba(logits)[rows, labels], 1e-12))
    return advice, after - log_softmax(logits, axis=1)[rows, labels]


@pytest.mark.parametrize(
    ("kind", "n_classes", "change"),
    [("top", 5, (1.5, 0)), ("top", 5, (2, 0)), ("binary", 2, (2, 0)),
     ("binary", 2, (1, 0.7))],
)  # fmt: skip
def test_where_a_recalibration_is_worth_it_a_private_fit_gains(kind, n_classes, change):
    # The change is many standard errors in size, so that the advice is to fit.
    for seed in range(2):
        advice, gains = advice_and_gains(kind, n_classes, 1500, change, seed, eps=1.0)
        assert advice.worth and advice.gain.low > advice.loss
        error = gains.std() / np.sqrt(len(gains))
        assert gains.mean() > 6 * error  # a gain on other rows, beyond chance
        # Of the top label or of two classes: of the size of the gain.
        assert 0.3 * gains.mean() < float(advice.gain) < 1.5 * gains.mean()


@pytest.mark.parametrize("factor", [1.5, 4, 8])
def test_the_gain_of_a_large_change_is_not_more_than_there_is(factor):
    # One Newton step from such scores promised three times the largest gain.
    monitor = started(3.0, periods=12, kind="binary", classes=[0, 1], random_state=0)
    for period in range(3):
        logits, labels = shifted([7, period], 4000, 2, 1, 0)
        monitor.update(factor * logits, labels, client_ids=np.arange(4000))
    advice = monitor.recalibration(eps=1.0)
    logits, labels = shifted([7, 9], 40_000, 2, 1, 0)
    most = log_loss(labels, softmax(factor * logits, axis=1)) - log_loss(
        labels, softmax(logits, axis=1)
    )
    assert advice.worth and 0 < advice.gain.low < most
    assert float(advice.gain) < 1.2 * most


def test_where_nothing_changed_there_is_no_advice_to_fit_and_no_gain():
    said = 0
    for seed in range(12):
        advice, gains = advice_and_gains("top", 3, 300, (1, 0), seed, eps=1.0)
        said += advice.worth
        # Probabilities that are true cannot be improved, but by chance in the test.
        assert gains.mean() < 6 * gains.std() / np.sqrt(len(gains)) + 1e-12
    # Wrong with 5 % each at most.
    assert binom.sf(said - 1, 12, 0.05) > CHANCE


def test_intervals_over_time_are_wider_than_those_of_one_period():
    monitor = run(started(random_state=0, periods=10), range(3))
    series = monitor.series("gap")
    one = monitor.estimate("gap", 0)
    assert series.low[0] < one.low < one < one.high < series.high[0]
    wide = monitor.estimate("gap", 0, ci=1 - 0.05 / 10)
    assert (series.low[0], series.high[0]) == pytest.approx((wide.low, wide.high))
    whole = monitor.series("gap", accumulated=True)
    assert whole.value[-1] == pytest.approx(float(monitor.estimate("gap")))


# ------------------------------------------------------------------------- simulations


def simulated_year(seed, n=1000, rate=0.05, weeks=52):
    """Year without a change: cells are drawn instead of rows, noise as released."""
    rng = np.random.default_rng(seed)
    monitor = started(None, privacy=CentralDP(3.0, delta=1e-5), false_alarm_rate=rate)
    centre = monitor_cells(monitor)
    score = rng.dirichlet(np.full(len(centre), 2.0))
    cells = np.stack([score * (1 - centre), score * centre])
    monitor.privacy_ = run(started(), [0]).privacy_ if not CACHE else CACHE[0]
    CACHE[:] = [monitor.privacy_]
    multiplier = monitor.privacy_.noise_multiplier
    for i in range(weeks):
        leaves = rng.multinomial(n, cells.ravel()).reshape(2, -1)
        coarse = leaves.reshape(2, 4, 16).sum(axis=2)
        sums = np.concatenate([coarse.ravel(), leaves.ravel()]).astype(float)
        sigma = np.sqrt(2) * multiplier
        sums += rng.normal(0, sigma, len(sums))
        laws = np.array([[1.0, sigma**2, 0, 0, n, 0]] * 2)
        monitor._periods.append(Period(f"{i}", n, False, sums, laws))
    return monitor, cells, centre


CACHE = []


def monitor_cells(monitor):
    from skfedcal.evaluation.grid import ScoreGrid

    return np.asarray(ScoreGrid(monitor.levels[-1], monitor.space).centres)


@pytest.mark.slow
def test_false_alarms_of_300_years_are_as_many_as_stated():
    years, rate = 300, 0.2
    found = sum(bool(simulated_year(s, rate=rate)[0].alarms_) for s in range(years))
    # Two metrics share the rate, and may be more alike than Bonferroni's bound.
    assert found <= binom.isf(CHANCE, years, rate)
    assert found >= binom.ppf(CHANCE, years, rate / 2)


@pytest.mark.slow
def test_intervals_of_all_periods_hold_together():
    years, missed = 60, 0
    for seed in range(years):
        monitor, cells, centre = simulated_year(seed, weeks=10)
        true = (cells * np.stack([centre, centre - 1])).sum()
        series = monitor.series("gap")
        missed += not ((series.low <= true) & (true <= series.high)).all()
    assert missed <= binom.isf(CHANCE, years, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_change_of_temperature_is_found_within_four_weeks(scale):
    for seed in range(2):
        monitor = started(random_state=seed)
        for number in range(10):
            temperature = 1.0 if number < 6 else 1.5
            rows = week(100 * seed + number, 5000, temperature, scale=scale)
            monitor.update(*rows[:2], client_ids=rows[2])
        assert 6 <= monitor.alarms_[0].period < 10


@pytest.mark.slow
def test_week_52_is_three_times_as_exact_as_with_an_even_split():
    ids, split = np.arange(300), []
    one, exact = started(random_state=0), started(None)
    for number in range(52):
        logits, labels, _ = week(number, n=300)
        for monitor in (one, exact):
            monitor.update(logits, labels, client_ids=ids)
        split.append(
            ScoreHistogram.fit(
                logits,
                labels,
                client_ids=ids,
                classes=range(4),
                kind="top",
                levels=(2, 6),
                height=6,
                max_examples_per_client=1,
                privacy=CentralDP(3.0 / 52),
                random_state=number,
            )
        )
    even = reduce(ScoreHistogram.merge, split)
    found = one.histogram()
    true = exact.histogram().counts_
    # 128 counts each: chance moves a root mean square by 6 % or so.
    errors = [np.sqrt(np.mean((h.counts_ - true) ** 2)) for h in (found, even)]
    assert errors[1] > 3 * errors[0]
    for metric in ("accuracy", "brier"):
        stated = [getattr(h, metric)().se_privacy for h in (found, even)]
        assert stated[1] > 3 * stated[0]

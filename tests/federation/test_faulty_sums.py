"""One site that does not send what it was asked for."""

from functools import partial

import numpy as np
import pytest
from sklearn.base import clone

from skfedcal import (
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    make_federation,
    testing,
)
from skfedcal.exceptions import FaultySumError, NotEnoughClientsError
from skfedcal.federation import (
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
    find_faulty_sites,
)
from skfedcal.methods import registry
from skfedcal.privacy import CentralDP, DistributedDP

NAMES = list("abcd")
CLASSES = [0, 1, 2]
FED = make_federation(4, 400, 3, dtype=np.float64, random_state=0)
BINARY = make_federation(4, 400, 2, dtype=np.float64, random_state=0)


# Sums that list single rows are answered only by a policy that names them.
EVERYTHING = SitePolicy(methods=tuple(registry.algorithms()))


def remote(fed, on_reply=None, n_rows=None, policy=EVERYTHING, **options):
    sites = {
        name: Site(name, SiteRows(*rows), policy=policy, **options)
        for name, rows in zip(NAMES, fed.clients, strict=True)
    }
    return RemoteClients(InProcessTransport(sites, on_reply=on_reply), n_rows=n_rows)


def garbage(seed, name="c", stage="masked"):
    """Random words in place of those of one site."""
    rng = np.random.default_rng(seed)

    def change(word):
        words = rng.integers(0, 2 ** (8 * word.itemsize), size=word.shape, dtype="u8")
        return words.astype(word.dtype)

    def hook(kind, site, reply):
        if (kind, site) != (stage, name):
            return reply
        return reply[0], {n: change(w) for n, w in reply[1].items()}

    return hook


SECURE = FederatedRunner(secure=True)


def fit_case(estimator, clients):
    fresh = clone(estimator).set_params(classes=CLASSES)
    runner = testing.short_runner(fresh, FED.clients).set_params(secure=True)
    return fresh.set_params(runner=runner).fit(clients)


FITS = {
    **{
        f"{method.word} {i}": partial(fit_case, method.load()(**case.params))
        for method in registry.methods("calibrator")
        for i, case in enumerate(method.cases)
    },
    "FedTemp distributed": lambda r: FedTempCalibrator(
        privacy=DistributedDP(1.0, mode="faithful"), classes=CLASSES, runner=SECURE
    ).fit(r),
    "FedTemp rows": lambda r: FedTempCalibrator(
        privacy=CentralDP(1.0, unit="example"), classes=CLASSES, runner=SECURE
    ).fit(r),
    "ScoreHistogram exact": lambda r: ScoreHistogram.fit(
        r, classes=CLASSES[:2], runner=SECURE
    ),
    "ScoreHistogram eps": lambda r: ScoreHistogram.fit(
        r, classes=CLASSES[:2], runner=SECURE, privacy=CentralDP(1.0)
    ),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("seed", range(5))
def test_a_garbage_site_is_an_error_that_names_the_cause(name, seed):
    """Random words pass for a sum once in 2**40."""
    fed = BINARY if "ScoreHistogram" in name else FED
    with pytest.raises(FaultySumError) as caught:
        FITS[name](remote(fed, garbage(seed), n_rows=400))
    text = str(caught.value)
    assert "at least one site is faulty or dishonest" in text
    assert "round 0" in text and "find_faulty_sites" in text


def test_what_was_paid_stays_paid_and_nothing_is_released():
    ledger = PrivacyLedger(budget=(3.0, 1e-5))
    calibrator = FedTempCalibrator(1.0, classes=CLASSES, runner=SECURE, ledger=ledger)
    with pytest.raises(FaultySumError):
        calibrator.fit(remote(FED, garbage(0)))
    assert len(ledger) == 1
    assert not hasattr(calibrator, "temperature_")


def test_an_honest_sum_is_never_called_faulty():
    """All rows of a client at the bound, for every kind of noise."""
    for name, fit in FITS.items():
        fit(remote(BINARY if "ScoreHistogram" in name else FED, n_rows=400))


@pytest.mark.parametrize("bad", ["a", "c"])
def test_the_faulty_site_is_found_without_a_look_at_rows(bad):
    touched = []

    def rows():
        touched.append(True)
        raise OSError("rows were read")

    policy = SitePolicy(noise="own", methods=("temperature.posterior/2",))
    sites = {
        name: Site(name, rows, policy=policy, ledger=PrivacyLedger(budget=(1.0, 1e-5)))
        for name in "abcdefg"
    }
    hook = garbage(1, bad)
    assert find_faulty_sites(InProcessTransport(sites)) == {}
    found = find_faulty_sites(RemoteClients(InProcessTransport(sites, on_reply=hook)))
    assert found == {bad: "spoils masked sums"}
    assert not touched
    assert all(not len(site._ledger) for site in sites.values())


def test_two_faulty_sites_and_one_that_is_gone_are_found():
    first, second = garbage(1, "b"), garbage(2, "e")

    def hook(kind, name, reply):
        if name == "f":
            return None
        return second(kind, name, first(kind, name, reply))

    rows = SiteRows(np.zeros((1, 2)), np.array([0]))
    sites = {name: Site(name, rows) for name in "abcdefgh"}
    found = find_faulty_sites(InProcessTransport(sites, on_reply=hook))
    assert set(found) == {"b", "e", "f"}
    assert "did not answer" in found["f"]


def test_too_few_honest_sites_are_an_error():
    sites = {n: Site(n, SiteRows(np.zeros((1, 2)), np.array([0]))) for n in "abcd"}
    first, second = garbage(1, "a"), garbage(2, "b")
    transport = InProcessTransport(
        sites, on_reply=lambda k, n, reply: second(k, n, first(k, n, reply))
    )
    with pytest.raises(NotEnoughClientsError, match="None of 5 cohorts of 3 among 4"):
        find_faulty_sites(transport)

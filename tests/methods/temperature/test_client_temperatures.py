"""Diagnostics of a simulation: local temperatures, message sizes, compute time."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from skfedcal import (
    FederatedRunner,
    FedTempCalibrator,
    client_temperatures,
    make_federation,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.forms import make_dataset
from skfedcal.contract import CellRows
from skfedcal.federation import InProcess, respond
from skfedcal.methods.registry import method_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
]


def test_each_client_has_its_own_optimum(draw, optimum):
    clients = [draw(60 + 20 * i, 4, temperature=1.0 + i, seed=i) for i in range(3)]
    empty = (np.empty((0, 4)), np.empty(0, dtype=int))
    found = client_temperatures([clients[0], empty, *clients[1:]])
    assert np.isnan(found).tolist() == [False, True, False, False]
    expected = [optimum(*client) for client in clients]
    np.testing.assert_allclose(found[[0, 2, 3]], expected, rtol=1e-6)


def test_all_forms_of_clients_agree(federation):
    expected = client_temperatures(federation.clients)
    logits, labels, ids = federation.logits, federation.labels, federation.client_ids
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    for args, params in (
        (([c[0] for c in federation.clients], [c[1] for c in federation.clients]), {}),
        (({f"{i:02}": c for i, c in enumerate(federation.clients)},), {}),
        ((logits, labels), {"client_ids": ids}),
        ((logits[order], labels[order]), {"client_ids": ids[order]}),
    ):
        np.testing.assert_allclose(
            client_temperatures(*args, **params), expected, rtol=1e-6
        )
    names = np.array(["c", "a", "b"])
    named = client_temperatures(
        logits, names[labels], client_ids=ids, classes=names.tolist()
    )
    np.testing.assert_array_equal(named, expected)
    proba = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    again = client_temperatures(proba, labels, client_ids=ids, input_type="proba")
    np.testing.assert_allclose(again, expected, rtol=1e-6)
    assert client_temperatures(logits, labels).shape == (1,)


def test_a_wrong_input_type_is_named(clients):
    with pytest.raises(ValueError, match="input_type='odds'"):
        client_temperatures(clients, input_type="odds")


def test_label_skew_spreads_the_optima():
    # The shape of Table 9. Medians of five federations, all seeds fixed.
    def spread(alpha):
        return np.median(
            [
                np.var(
                    client_temperatures(
                        make_federation(
                            40,
                            8000,
                            class_bias=2.0,
                            alpha=alpha,
                            balance=True,
                            n_test=0,
                            random_state=seed,
                        ).clients
                    )
                )
                for seed in range(5)
            ]
        )

    spreads = [spread(alpha) for alpha in (0.1, 0.5, None)]
    assert spreads[0] > 2 * spreads[1] > 4 * spreads[2]


@dataclass
class Weighing:
    """An engine that writes each client's answer as a message of machine words."""

    clients: FederatedDataset
    up: list = field(default_factory=list)
    down: list = field(default_factory=list)

    def ids(self):
        return self.clients.names

    def total(self, request, cohort):
        sent = {name: np.asarray(v).tobytes() for name, v in request.broadcast.items()}
        self.down.append(sum(map(len, sent.values())))
        sizes = set()
        for i in cohort:
            client = self.clients.slice(i, i + 1)
            values = request.algorithm.query(request.broadcast, client)
            answer = request.codec.encode(
                {
                    name: v.dense() if isinstance(v, CellRows) else v
                    for name, v in values.items()
                }
            )
            sizes.add(
                sum(len(self._write(request.codec, k, v)) for k, v in answer.items())
            )
        self.up.append(sizes)
        return InProcess(self.clients).total(request, cohort)

    def _write(self, codec, name, integers):
        """Words that can hold the sum over all clients, whatever these send.

        And in which random words are all in range once in 2**40 at most.
        """
        code = codec.blocks[name]
        largest = 2**40  # of a count or limb: more than 32 bits when summed
        if code.step is not None:
            largest = (code.spec.clip / code.step) * len(self.clients)
        free = np.ceil(40 / integers[0].size)
        words = integers.astype("<i4" if largest * 2**free < 2**31 else "<i8")
        assert (words == integers).all()
        return words.tobytes()


@pytest.mark.parametrize("n_clients", [12, 3])
def test_bytes_of_the_history_are_those_of_the_messages(
    calibrator_class, federation, n_clients
):
    for eps in (None, 2.0) if method_of(calibrator_class).has_noise else (None,):
        check_bytes(calibrator_class, federation.clients[:n_clients], eps)


def check_bytes(calibrator_class, clients, eps):
    cal = calibrator_class(eps, classes=range(3), random_state=0)
    dataset, _ = make_dataset(
        calibrator_class(), clients, None, classes=range(3), input_type="logits"
    )
    engine = Weighing(dataset)
    cal.set_params(runner=FederatedRunner(backend=engine)).fit(clients)
    assert len(cal.history_) == len(engine.up) >= 1
    for record, up, down in zip(cal.history_, engine.up, engine.down, strict=True):
        assert {record.bytes_up} == up
        assert record.bytes_down == down


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_clients_are_timed_in_a_simulation(calibrator_class, clients, n_jobs):
    cal = calibrator_class(runner=FederatedRunner(n_jobs=n_jobs)).fit(clients)
    for record in cal.history_:
        assert record.client_seconds > 0


def test_times_do_not_tell_the_size_of_a_secret_sample(clients):
    runner = FederatedRunner(cohort="poisson", cohort_size=4)
    cal = FedTempCalibrator(1.0, runner=runner, classes=range(3), random_state=0)
    for record in cal.fit(clients).history_:
        assert np.isnan(record.client_seconds)
        assert np.isnan(record.seconds)


def test_sites_of_another_engine_are_not_timed(clients):
    class Sites(Weighing):
        def total(self, request, cohort):
            return respond(request, self.clients)

    dataset, _ = make_dataset(
        FedTempCalibrator(), clients, None, classes=range(3), input_type="logits"
    )
    runner = FederatedRunner(backend=Sites(dataset))
    cal = FedTempCalibrator(runner=runner).fit(clients)
    assert all(np.isnan(record.client_seconds) for record in cal.history_)

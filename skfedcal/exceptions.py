"""Errors and warnings raised by skfedcal."""

__all__ = [
    "BudgetExceededError",
    "CalibrationWarning",
    "CheckpointError",
    "CheckpointWarning",
    "FaultyClientWarning",
    "FaultySumError",
    "LedgerCorruptedError",
    "LogitsWarning",
    "NotEnoughClientsError",
    "PrivacyWarning",
    "ResultError",
    "SecureAggregationError",
    "SimulatedPrivacyWarning",
    "SiteRefusalError",
]


class BudgetExceededError(RuntimeError):
    """A debit would exceed the budget of the ledger; nothing was released.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, PrivacyLedger, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> ledger = PrivacyLedger(budget=(1.0, 1e-5))
    >>> calibrator = FedTempCalibrator(eps=0.9, ledger=ledger)
    >>> first = calibrator.fit(fed.clients)
    >>> calibrator.fit(fed.clients)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.BudgetExceededError: The debit 'FedTempCalibrator' ...
    """


class LedgerCorruptedError(RuntimeError):
    """A ledger file was edited or damaged; it refuses further debits.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skfedcal import PrivacyLedger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ledger.jsonl")
    ...     _ = path.write_text("not a ledger")
    ...     PrivacyLedger(path)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.LedgerCorruptedError: .../ledger.jsonl, line 1 is not a ...
    """


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used for this fit.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skfedcal import FederatedRunner, FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runner = FederatedRunner(checkpoint=Path(folder, "run.npz"))
    ...     first = FedTempCalibrator(runner=runner).fit(fed.clients)
    ...     second = FedTempCalibrator(runner=runner).fit(fed.clients)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.CheckpointError: .../run.npz exists. Pass ...
    """


class NotEnoughClientsError(RuntimeError):
    """Fewer clients answered than the runner requires.

    Examples
    --------
    >>> import warnings
    >>> from skfedcal import FederatedRunner, FedTempCalibrator, make_federation
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=4, n_samples=600, n_classes=4, random_state=0)
    >>> sites = {}
    >>> for name, rows in zip("abcd", fed.clients):
    ...     policy = SitePolicy(allow_plain=name != "d")
    ...     sites[name] = Site(name, SiteRows(*rows), policy=policy)
    >>> calibrator = FedTempCalibrator(
    ...     classes=[0, 1, 2, 3], runner=FederatedRunner(min_clients=4))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     calibrator.fit(RemoteClients(InProcessTransport(sites)))
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.NotEnoughClientsError: 3 clients answered in round 0, ...
    """


class SecureAggregationError(RuntimeError):
    """A client or the server refuses to go on with a masked round.

    Examples
    --------
    >>> from skfedcal import FederatedRunner, FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=2, n_samples=100, random_state=0)
    >>> FedTempCalibrator(runner=FederatedRunner(secure=True)).fit(fed.clients)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.SecureAggregationError: FederatedRunner(secure=True) ...
    """


class FaultySumError(SecureAggregationError):
    """A masked sum exceeds the bound on honest answers: at least one site is faulty.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FedTempCalibrator, FederatedRunner, make_federation
    >>> from skfedcal.exceptions import FaultySumError
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SiteRows)
    >>> fed = make_federation(n_clients=4, n_samples=400, n_classes=3, random_state=0)
    >>> sites = {n: Site(n, SiteRows(*rows)) for n, rows in zip("abcd", fed.clients)}
    >>> def garbage(kind, name, reply):
    ...     if kind == "masked" and name == "c":
    ...         reply = reply[0], {k: w + 2**60 for k, w in reply[1].items()}
    ...     return reply
    >>> remote = RemoteClients(InProcessTransport(sites, on_reply=garbage))
    >>> calibrator = FedTempCalibrator(
    ...     classes=[0, 1, 2], runner=FederatedRunner(secure=True))
    >>> try:
    ...     calibrator.fit(remote)
    ... except FaultySumError as error:
    ...     print("at least one site is faulty or dishonest" in str(error))
    True
    """


class SiteRefusalError(RuntimeError):
    """A site does not answer a request; the text goes to the server.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=3, n_samples=600, n_classes=4, random_state=0)
    >>> policy = SitePolicy(allow_plain=True, classes=("sick", "well"))
    >>> site = Site("a", SiteRows(*fed.clients[0]), policy=policy)
    >>> site.handle("answer", {"run": "r", "round": 0, "request": "{}"}, {})[0]
    {'refused': "The request has the format None, this site reads 'skfedcal wire 4'..."}
    """


class ResultError(ValueError):
    """The file of a result over sites does not hold what it should.

    Attributes
    ----------
    reason : {'file', 'signature', 'chain', 'statement', 'ledger'}
        It cannot be read; it is not signed, or was changed; its rounds do not follow
        from each other; it states what its own runs do not say; a ledger of a site does
        not have its debits.

    Examples
    --------
    >>> from skfedcal.exceptions import ResultError
    >>> ResultError("result.json is not signed.", "signature").reason
    'signature'
    """

    def __init__(self, text: str, reason: str = "file") -> None:
        super().__init__(text)
        self.reason = reason


class FaultyClientWarning(UserWarning):
    """Clients were left out of a sum: no answer, an invalid answer, or a refusal.

    Examples
    --------
    >>> import warnings
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.exceptions import FaultyClientWarning
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=4, n_samples=600, n_classes=4, random_state=0)
    >>> sites = {}
    >>> for name, rows in zip("abcd", fed.clients):
    ...     policy = SitePolicy(allow_plain=name != "d")
    ...     sites[name] = Site(name, SiteRows(*rows), policy=policy)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", FaultyClientWarning)
    ...     FedTempCalibrator(classes=[0, 1, 2, 3]).fit(
    ...         RemoteClients(InProcessTransport(sites)))
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.FaultyClientWarning: The sum does not include all ...
    """


class PrivacyWarning(UserWarning):
    """The call is valid but the privacy guarantee is weaker than it looks.

    Examples
    --------
    >>> import warnings
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.exceptions import PrivacyWarning
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", PrivacyWarning)
    ...     FedTempCalibrator(eps=1.0, delta=0.01).fit(fed.clients)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.PrivacyWarning: delta=0.01 is large for 50 clients; a ...
    """


class SimulatedPrivacyWarning(PrivacyWarning):
    """The noise came from a seed: the fit is a simulation and not private.

    Examples
    --------
    >>> import warnings
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.exceptions import SimulatedPrivacyWarning
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", SimulatedPrivacyWarning)
    ...     FedTempCalibrator(eps=1.0, random_state=0).fit(fed.clients)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.SimulatedPrivacyWarning: random_state=0 makes the noise ...
    """


class CheckpointWarning(UserWarning):
    """A result comes from a checkpoint, not from the clients.

    Examples
    --------
    >>> import tempfile
    >>> import warnings
    >>> from pathlib import Path
    >>> from skfedcal import FederatedRunner, FedTempCalibrator, make_federation
    >>> from skfedcal.exceptions import CheckpointWarning
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    ...     warnings.simplefilter("error", CheckpointWarning)
    ...     runner = FederatedRunner(checkpoint=Path(folder, "run.npz"), resume=True)
    ...     first = FedTempCalibrator(runner=runner).fit(fed.clients)
    ...     second = FedTempCalibrator(runner=runner).fit(fed.clients)
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.CheckpointWarning: .../run.npz holds a finished run: ...
    """


class LogitsWarning(UserWarning):
    """The input is accepted as logits but looks like something else.

    Examples
    --------
    >>> import warnings
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.exceptions import LogitsWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", LogitsWarning)
    ...     FedTempCalibrator().fit([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1])
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.LogitsWarning: All rows of X are non-negative and sum ...
    """


class CalibrationWarning(UserWarning):
    """A calibration map was fitted but should be inspected before use.

    Examples
    --------
    >>> import warnings
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.exceptions import CalibrationWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", CalibrationWarning)
    ...     FedTempCalibrator().fit([[3.0, 0.0], [0.0, 2.0]], [0, 1])  # never wrong
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.CalibrationWarning: The log loss has no minimum inside ...
    """

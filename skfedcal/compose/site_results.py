"""A fit over sites with evidence: what it gave, whether it helped, who took part.

`fit_sites` fits without the rows that sites hold back, and compares the map with its
input on these. `SiteResult` is the result as a file: calibrator, gain, who answered
which round, who was left out and why, versions, and a hash chain of what was released,
signed with the key of the operator. `verify_result` checks such a file, also against
the ledgers of sites.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from math import inf, isclose, isfinite, sqrt
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from skfedcal._files import as_path
from skfedcal._json import check_format, dump, member, parse, read_file, write_file
from skfedcal._params import check_number
from skfedcal._version import __version__
from skfedcal.evaluation.gain import (
    Gain,
    check_gain,
    federated_gain,
    gain_text,
    noise_of_gain,
)
from skfedcal.evaluation.inputs import label_of_columns
from skfedcal.exceptions import (
    LedgerCorruptedError,
    NotEnoughClientsError,
    ResultError,
)
from skfedcal.federation.messages import PreflightEnd, format_faults, one_line
from skfedcal.federation.plain import to_plain
from skfedcal.federation.remote import RemoteClients
from skfedcal.federation.runner import FederatedRunner
from skfedcal.federation.wire import common_terms, terms_hash
from skfedcal.methods.held_back import map_losses
from skfedcal.methods.persistence import file_content, load_content
from skfedcal.privacy.accounting import calibrate_noise, compose_epsilon, gdp_epsilon
from skfedcal.privacy.events import (
    GaussianEvent,
    PrivacyEvent,
    PureEvent,
    event_from_dict,
)
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import LocalDP, usual_delta

if TYPE_CHECKING:
    from skfedcal._typing import Estimator, PathLike
    from skfedcal.federation.history import RoundHistory
    from skfedcal.federation.roster import Operator, Roster
    from skfedcal.methods.base import BaseCalibrator
    from skfedcal.privacy.events import PrivacyReport

_FORMAT, _FORMAT_VERSION = "skfedcal-result", 1
_SIGNED, _CHAIN = b"skfedcal result 1", b"skfedcal releases 1"
# A comparison whose noise has a larger standard error than the second shows nothing,
# and is not paid for. Log losses are cut as high as the first allows.
USUAL_NOISE, MAX_NOISE = 0.05, 0.1
BOUNDS = (8.0, 4.0, 2.0)
_OF_DELTA = 0.75
_MEMBERS = {"time": str, "versions": dict, "sites": dict, "runs": list,
            "left_out": dict, "privacy": dict, "calibrator": dict}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SiteResult:
    """Result of a fit over sites, with the evidence for it.

    Parameters
    ----------
    content : dict
        Plain values, as in the file.
    calibrator : BaseCalibrator
        The fitted calibrator.
    operator : Operator, default=None
        Signs the file.

    Attributes
    ----------
    gain : dict or None
        Score before and after, the difference and its interval; None if there was no
        comparison, and then ``content['no_gain']`` says why.
    left_out : dict of str to str
        Sites that are in no sum, and why.

    See Also
    --------
    skfedcal.fit_sites : Makes it.
    skfedcal.verify_result : Checks its file.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, fit_sites, make_federation
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=3, n_samples=3000, n_classes=3, random_state=0)
    >>> policy = SitePolicy(allow_plain=True)
    >>> sites = {n: Site(n, SiteRows(*rows), policy=policy)
    ...          for n, rows in zip("abc", fed.clients)}
    >>> result = fit_sites(
    ...     FedTempCalibrator(classes=[0, 1, 2]),
    ...     RemoteClients(InProcessTransport(sites)))
    >>> result.gain["difference"]["value"] < 0, result.left_out
    (True, {})
    """

    content: dict[str, object]
    calibrator: BaseCalibrator
    operator: Operator | None = None

    @property
    def gain(self) -> Mapping[str, object] | None:
        return cast("Mapping[str, object] | None", self.content["gain"])

    @property
    def left_out(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.content["left_out"])

    def save(self, path: PathLike) -> None:
        """Write the file, signed if the result has an operator.

        Parameters
        ----------
        path : str or path-like
            JSON file; replaced as a whole or not at all.
        """
        out: dict[str, Any] = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "content": self.content,
            "operator": None,
            "signature": None,
        }
        if self.operator is not None:
            key = self.operator.key
            signature = key.sign(_signed_text(self.content))
            out |= {"operator": key.public.hex(), "signature": signature.hex()}
        write_file(path, out)

    def __str__(self) -> str:
        content, left = cast("dict[str, Any]", self.content), self.left_out
        names = sorted(content["sites"])
        answered = [name for name in names if name not in left]
        lines = [
            f"{type(self.calibrator).__name__}, {self.calibrator.n_rounds_} rounds, "
            f"{len(answered)} of {len(names)} sites: {', '.join(answered)}",
            *(f"left out: {name} {one_line(why)}" for name, why in left.items()),
            content["privacy"]["statement"],
        ]
        if self.gain is None:
            why = one_line(content["no_gain"])
            return "\n".join([*lines, f"no comparison: {why}"])
        cut = self.gain["cut"]
        more = "" if cut is None else f"; losses of a row cut at {cut:g}"
        lines.append(f"compared on held-back rows at the sites{more}")
        return "\n".join([*lines, gain_text(self.gain, " at the sites")])


def fit_sites(
    calibrator: Estimator,
    sites: RemoteClients,
    *,
    share: float = 0.2,
    metric: Literal["accuracy", "brier", "log_loss"] = "log_loss",
    ci: float = 0.95,
) -> SiteResult:
    """Fit a calibrator over sites, and compare its predictions with its input there.

    Sites hold back a fifth of their rows by a public rule. The fit leaves these out,
    and the comparison uses nothing else. Sites check the rule, and are asked before the
    fit whether they would answer both.

    Parameters
    ----------
    calibrator : BaseCalibrator
        With its parameters; it is not changed. Its privacy model pays for fit and
        comparison together.
    sites : RemoteClients
        Sites, and who signs what they are asked.
    share : float, default=0.2
        Share of eps for the comparison; of exact sums, whether it is above 0. With 0
        all rows are fitted and nothing is compared.
    metric : {'log_loss', 'brier', 'accuracy'}, default='log_loss'
        What is compared.
    ci : float, default=0.95
        Level of the interval.

    Returns
    -------
    SiteResult

    Notes
    -----
    Where noise would give the difference a standard error above 0.1, as where whole
    sites are protected and there are few, nothing is compared, and the fit gets all
    rows and all of eps.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, fit_sites
    >>> from skfedcal.federation import connect
    >>> def calibrate(address, operator):
    ...     with connect(address, n_rows=12_000, operator=operator) as sites:
    ...         result = fit_sites(FedTempCalibrator(eps=1, classes=[0, 1]), sites)
    ...     result.save("result.json")
    """
    params, runner, model = _settings(calibrator, sites, share)
    n_rows = _n_units(sites.part("held"), params, model)
    if share > 0:
        model = fix_delta(model, round(_n_units(sites, params, model)))
    bound, why = plan_comparison(model, n_rows, share)
    compared = not why
    fit_model = _part(model, 1 - share) if compared else model
    once = replace(runner, n_rounds=None)
    if runner.checkpoint is not None:
        once = replace(once, checkpoint=f"{runner.checkpoint}.gain")
    start = len(sites.asked)
    if compared:
        _ask_first(sites, params, model, once)
    own = {**params, "privacy": fit_model, "eps": None, "delta": None}
    fitted: Any = type(calibrator)(**own)
    fitted.fit(sites.part("fit") if compared else sites)
    asked = list(sites.asked[start:])
    gain: Gain | None = None
    if compared and not fitted._map_is_used:
        compared, why = False, "the predictions are the input"
    if compared:
        rest, noise = _rest(model, share, fitted.privacy_)
        try:
            gain = federated_gain(
                fitted,
                sites,
                metric=metric,
                privacy=rest,
                bound=bound,
                noise=noise,
                held_back=True,
                ci=ci,
                ledger=params["ledger"],
                runner=once,
                random_state=params["random_state"],
            )
        except NotEnoughClientsError as error:  # the fit is paid for, and stays
            why = str(error)
            warnings.warn(f"No comparison: {why}", RuntimeWarning, stacklevel=2)
    later = list(sites.asked[start + len(asked) :])
    content = _content(fitted, gain, why, sites, asked, later)
    return SiteResult(content, fitted, sites.operator)


def _settings(
    calibrator: Any, sites: Any, share: float
) -> tuple[dict[str, Any], FederatedRunner, Any]:
    if not hasattr(calibrator, "predict_proba") or isinstance(calibrator, type):
        raise TypeError(
            f"calibrator is of type {type(calibrator).__name__}; pass a calibrator "
            "such as FedTempCalibrator(eps=1, classes=[0, 1])."
        )
    if not isinstance(sites, RemoteClients):
        raise TypeError(
            f"sites is of type {type(sites).__name__}; pass RemoteClients, as "
            "connect() gives them. Clients in this process: fit, and federated_gain."
        )
    check_number("share", share, 0, 1, "left")
    params = calibrator.get_params(deep=False)
    runner = params["runner"] or FederatedRunner()
    if runner.cohort != "full":
        raise ValueError(
            f"FederatedRunner(cohort={runner.cohort!r}): a result names who answered, "
            "which a sample must not; use cohort='full'."
        )
    return params, runner, calibrator._privacy_model()


def _n_units(sites: RemoteClients, params: dict[str, Any], model: Any) -> float:
    """Units that are protected: rows, or sites."""
    if not model.private or model.unit != "example":
        return float(len(sites))
    data, _ = sites.read(params["classes"], params["input_type"])
    return float(data.n_rows)


def fix_delta(model: Any, n_units: int) -> Any:
    """Model with the delta of all units, for runs over parts of them.

    By itself a run over fewer rows would take a larger one.
    """
    if not model.private or getattr(model, "delta", 0.0) is not None:
        return model
    return replace(model, delta=usual_delta(None, max(n_units, 1), model.unit))


def plan_comparison(model: Any, n_units: float, share: float) -> tuple[float, str]:
    """Where to cut log losses; and why a comparison would show nothing, else empty."""
    if share == 0:
        return BOUNDS[-1], "share is 0"
    if not model.private:
        return BOUNDS[0], ""
    if isinstance(model, LocalDP):
        return BOUNDS[-1], "LocalDP randomises counts, and a comparison has none"
    mu = model.strength(max(round(n_units), 1))
    # Gaussian noise of both: squares of mu add up, and mu goes with eps.
    mu *= sqrt(1 - (1 - share) ** 2)
    for bound in BOUNDS:
        noise = noise_of_gain(n_units, mu, bound)
        if noise <= USUAL_NOISE:
            return bound, ""
    if noise <= MAX_NOISE:
        return bound, ""
    units = "rows" if model.unit == "example" else "sites"
    return bound, (
        f"at this eps noise on {n_units:g} {units} would give the difference a "
        f"standard error of {noise:.2g}"
    )


def _part(model: Any, share: float) -> Any:
    """Model with a share of the budget."""
    return replace(model, eps=model.eps * share) if model.private else model


def _rest(
    model: Any, share: float, report: PrivacyReport
) -> tuple[Any, Literal["laplace", "gaussian"]]:
    """Model of the comparison, which with the fit keeps the budget; and its noise.

    Squares of mu of Gaussian noise add up to that of the whole budget. Pure eps add up
    to eps.
    """
    if report.mu is None or not model.private:
        return _part(model, share), "laplace"
    # A ledger keeps a tenth of delta for other lists of releases, and some for slack.
    whole = calibrate_noise(float(model.eps), _OF_DELTA * report.delta)
    mu = sqrt(max(1 / whole.noise_multiplier**2 - report.mu**2, 0.0))
    if mu == 0:
        return _part(model, share), "gaussian"
    return replace(model, eps=gdp_epsilon(mu, report.delta)), "gaussian"


def _ask_first(
    sites: RemoteClients, params: dict[str, Any], model: Any, runner: FederatedRunner
) -> None:
    """Whether sites would compare, asked before the fit touches a row.

    With the eps of both, so that a budget covers both.
    """
    transport: Any = sites.transport
    preflight = getattr(transport, "preflight", False)
    if not preflight:
        return
    transport.preflight = "only"
    runner = replace(runner, checkpoint=None, resume=False)
    try:
        check_gain(sites, params["classes"], params["input_type"], model, runner)
    except PreflightEnd as end:
        n_left = len(sites) - len(end.faults)
        if n_left >= end.least:
            return
        if preflight == "only":
            raise
        raise NotEnoughClientsError(
            f"{n_left} of {len(sites)} sites would compare the result with its input, "
            f"at least {end.least} must.{format_faults(end.faults)} No row was used "
            "and nothing was paid. share=0 fits without a comparison."
        ) from None
    finally:
        transport.preflight = preflight


def _content(
    fitted: Any,
    gain: Gain | None,
    why: str,
    sites: RemoteClients,
    asked: list[str],
    later: list[str],
) -> dict[str, Any]:
    names = [str(name) for name in sites.transport.ids()]
    runs = [_run("fit", fitted.history_, fitted.privacy_, asked, names)]
    if gain is not None:
        report = gain.difference.privacy or fitted.privacy_
        runs.append(_run("gain", gain.history, report, later, names))
    _link(runs)
    gone = _left_out(runs)
    greetings: Mapping[str, Any] = getattr(sites.transport, "greetings", {})
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "sites": {
            name: {"version": str(greetings.get(name, {}).get("version", ""))[:50]}
            for name in names
        },
        "left_out": gone,
        "privacy": _privacy(runs, len(names) - len(gone)),
        "gain": None if gain is None else _finite(gain.to_dict()),
        "no_gain": why,
        "runs": runs,
        "calibrator": file_content(fitted),
    }


def _run(
    what: str,
    history: RoundHistory,
    report: PrivacyReport,
    asked: Sequence[str],
    names: Sequence[str],
) -> dict[str, Any]:
    """One run: what was asked, its guarantee and its rounds."""
    rounds = []
    for record in history:
        left = {str(name): one_line(why) for name, why in record.faults.items()}
        sums = {name: np.asarray(v).tolist() for name, v in record.total.items()}
        rounds.append(
            {
                "round": record.round,
                "answered": [name for name in names if name not in left],
                "left_out": left,
                # Sums with noise are public; exact ones are for the server.
                "released": _finite(sums) if report.private else _hash(_finite(sums)),
            }
        )
    return {
        "what": what,
        "terms": list(dict.fromkeys(map(common_terms, asked))),
        "privacy": _finite(asdict(report)),
        "rounds": rounds,
    }


def _left_out(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Sites that are in no sum of the fit, and what was wrong last."""
    rounds = [record["left_out"] for record in runs[0]["rounds"]]
    gone = set.intersection(*map(set, rounds)) if rounds else set()
    return {name: rounds[-1][name] for name in sorted(gone)}


def _link(runs: Sequence[dict[str, Any]]) -> None:
    """Give every round the hash of itself and all before it."""
    last = sha256(_CHAIN).hexdigest()
    for run in runs:
        for record in run["rounds"]:
            record["hash"] = last = _next_hash(last, run, record)


def _next_hash(last: str, run: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    body = {name: value for name, value in record.items() if name != "hash"}
    return _hash([last, run["what"], run["terms"], body])


def _hash(value: object) -> str:
    return sha256(_canonical(value)).hexdigest()


def _canonical(value: object) -> bytes:
    """The one text of a JSON value that is hashed and signed."""
    return dump(_sorted(value)).encode()


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _sorted(value[name]) for name in sorted(value)}
    return [_sorted(v) for v in value] if isinstance(value, (list, tuple)) else value


def _finite(value: Any) -> Any:
    """Plain values; numbers that are not finite become texts."""
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not isfinite(value):
        return repr(value)
    return value


def _signed_text(content: Mapping[str, Any]) -> bytes:
    return _SIGNED + sha256(_canonical(content)).digest()


def _privacy(runs: Sequence[Mapping[str, Any]], n_in: int) -> dict[str, Any]:
    """Guarantee of all runs together for sites in them, in numbers and words."""
    first = runs[0]["privacy"]
    if not _private(first):
        out = {"eps": None, "delta": 0.0}
    else:
        eps, delta = _composed(runs)
        out = {
            "eps": eps,
            "delta": delta,
            "unit": first["unit"],
            "adjacency": first["adjacency"],
            "n_units": first["n_clients"],
            "n_sites": n_in,
            "secure": all(run["privacy"]["secure"] for run in runs),
        }
    return out | {"statement": _statement(out, runs, n_in)}


def _private(report: Mapping[str, Any]) -> bool:
    return float(report["eps"]) < inf


def _statement(
    stated: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], n_in: int
) -> str:
    """Words of a guarantee, from its numbers."""
    if stated["eps"] is None:
        return f"exact sums over {n_in} sites: no differential privacy"
    how = ""
    if len(runs) > 1:
        fit, gain = (run["privacy"] for run in runs)
        more = "" if None in (fit["mu"], gain["mu"]) else "; squares of mu add up"
        how = f" (fit {fit['eps']:.3g}, comparison {gain['eps']:.3g}{more})"
    unit = "site" if stated["unit"] == "client" else "example"
    where = "" if unit == "site" else f" at {n_in} sites"
    mark = "" if stated["secure"] else "SIMULATED: "
    return (
        f"{mark}protects one {unit} among {stated['n_units']}{where}, "
        f"eps={stated['eps']:.3g}, delta={stated['delta']:.2g}{how}"
    )


def _composed(runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Guarantee of all runs together; with the slack of discrete noise."""
    reports = [run["privacy"] for run in runs]
    delta = max(report["delta"] for report in reports)
    if len(runs) == 1:
        return reports[0]["eps"], delta
    if any(report["mu"] is None for report in reports):
        return sum(r["eps"] for r in reports), sum(r["delta"] for r in reports)
    return compose_epsilon([e for run in runs for e in _events(run)], delta), delta


def _events(run: Mapping[str, Any]) -> list[PrivacyEvent]:
    """What a run costs, as sites were told."""
    claims = [terms["claim"] for terms in _terms(run)]
    return [event_from_dict(claim) for claim in claims if claim is not None] or [
        GaussianEvent(run["privacy"]["mu"])
    ]


def _terms(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [parse(text, "terms") for text in run["terms"]]


def _versions() -> dict[str, str]:
    out = {"skfedcal": __version__, "python": platform.python_version()}
    for name in ("numpy", "scikit-learn", "cryptography", "flwr"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def verify_result(
    path: PathLike,
    *,
    roster: Roster | None = None,
    ledgers: Mapping[str, PathLike] | Sequence[PathLike] = (),
) -> SiteResult:
    """Check the file of a result: signature, chain, statements, ledgers of sites.

    Parameters
    ----------
    path : str or path-like
        File that `SiteResult.save` wrote.
    roster : Roster, default=None
        Roster of the sites: its operator must have signed, and it must have all sites
        of the result. None accepts the key that is in the file.
    ledgers : mapping of site to path, or sequence of paths, default=()
        Ledgers of sites: each must have the debits of the runs, as the result states
        them. With the name of its site, of the runs in which that site took part.

    Returns
    -------
    SiteResult

    Raises
    ------
    ResultError
        Naming what is wrong; `reason` is 'file', 'signature', 'chain', 'statement' or
        'ledger'.

    Examples
    --------
    >>> from skfedcal import verify_result
    >>> verify_result("result.json")
    Traceback (most recent call last):
        ...
    skfedcal.exceptions.ResultError: result.json cannot be read: No such file or ...
    """
    path = as_path(path)
    where = str(path)
    content, public, signature = _read(path)
    if public is None or signature is None:
        raise ResultError(f"{where} is not signed.", "signature")
    from skfedcal.federation.crypto import verify

    named = (
        ledgers.items() if isinstance(ledgers, Mapping) else [("", p) for p in ledgers]
    )
    try:
        if not verify(public, _signed_text(content), signature):
            raise ResultError(
                f"{where} was changed after it was signed, or was signed by another "
                "key than it says.",
                "signature",
            )
        if roster is not None:
            _check_roster(where, content, public, roster)
        _check_chain(where, content)
        out = SiteResult(content, load_content(content["calibrator"], where))
        for wrong in _contradictions(content, out.calibrator):
            raise ResultError(f"{where}: {wrong}.", "statement")
        for name, ledger in named:
            check_ledger(content, str(name), ledger)
        str(out)  # all that it says can be read
    except ResultError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        text = f"{where} is damaged: {error!r}"
        raise ResultError(text, "file") from error
    return out


def _contradictions(content: Mapping[str, Any], calibrator: Any) -> Iterator[str]:
    """What a result states, and what its runs and terms say otherwise."""
    runs, gain, sites = content["runs"], content["gain"], set(content["sites"])
    kinds = ["fit"] if gain is None else ["fit", "gain"]
    if [run["what"] for run in runs] != kinds:
        yield f"its runs are not {' and '.join(kinds)}"
        return
    for run in runs:
        for record in run["rounds"]:
            answered, left = set(record["answered"]), set(record["left_out"])
            if answered & left or answered | left != sites:
                yield (
                    f"round {record['round']} of the run {run['what']!r} does not say "
                    "of each site whether it answered"
                )
        yield from _against_terms(run)
    if not _alike(_finite(asdict(calibrator.privacy_)), runs[0]["privacy"]):
        yield "the calibrator has another report on privacy than the run 'fit'"
    for terms in _terms(runs[0]):
        asked = [terms["reading"][name] for name in ("classes", "input_type")]
        columns = label_of_columns(calibrator._class_map)
        if asked != [np.asarray(columns).tolist(), calibrator.input_type]:
            yield "the calibrator reads other scores than those of the run 'fit'"
    if content["left_out"] != _left_out(runs):
        yield "the sites that were left out are not those of its rounds"
    n_in = len(sites) - len(content["left_out"])
    stated, found = content["privacy"], _privacy(runs, n_in)
    for name in found.keys() - {"eps", "delta", "statement"}:
        if stated[name] != found[name]:
            yield f"it states {name}={stated[name]!r}, its runs have {found[name]!r}"
    for name in ("eps", "delta"):
        if _is_less(stated[name], found[name]):
            yield f"it states {name}={stated[name]}, its runs have {found[name]}"
    if stated["statement"] != _statement(stated, runs, n_in):
        yield "its statement on privacy does not say what its numbers say"
    if gain is not None:
        yield from _against_map(gain, runs, calibrator)


def _is_less(stated: Any, found: Any) -> bool:
    """Whether less is stated than was found; None is no privacy at all."""
    if stated is None or found is None:
        return stated is not found
    return float(stated) < float(found) * (1 - 1e-6)


def _against_terms(run: Mapping[str, Any]) -> Iterator[str]:
    """Differences of the report of a run from what sites were asked."""
    what, report = f"the run {run['what']!r}", run["privacy"]
    if run["rounds"] and not run["terms"]:
        yield (
            f"{what} has rounds, but not what sites were asked, so that its cost "
            "cannot be checked"
        )
        return
    for terms in _terms(run):
        if (terms["claim"] is None) == _private(report):
            yield f"{what} and its terms disagree on whether there was noise"
            return
        if terms["unit"] != report["unit"]:
            yield f"{what} protects a {report['unit']}, its terms a {terms['unit']}"
        if terms["simulated"] and report["secure"]:
            yield f"{what} is no simulation, its terms are of one"
    if _private(report) and run["terms"]:
        pure = [e.eps for e in _events(run) if isinstance(e, PureEvent)]
        eps = sum(pure)
        if len(pure) < len(run["terms"]):
            eps = compose_epsilon(_events(run), float(report["delta"]))
        if _is_less(report["eps"], eps):
            yield f"{what} has eps={report['eps']}, its terms cost {eps}"


def _against_map(
    gain: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], calibrator: Any
) -> Iterator[str]:
    """Differences of a gain from what was compared, on which rows, with which map."""
    if not calibrator._map_is_used:
        yield "the calibrator does not use the map that was compared"
    report, stated = runs[1]["privacy"], gain["difference"]
    if _private(report) and [stated["eps"], stated["delta"], stated["simulated"]] != [
        report["eps"],
        report["delta"],
        not report["secure"],
    ]:
        yield "the gain has another guarantee than the run 'gain'"
    inner = getattr(calibrator, "calibrator_", calibrator)
    map_ = to_plain(map_losses(inner, held=False))
    fit, compared = map(_terms, runs)
    parts = {terms["reading"].get("part", "all") for terms in compared}
    if gain["held_back"] is not True or parts != {"held"}:
        yield "the comparison was not made on the rows that fits leave out"
    if {terms["reading"].get("part", "all") for terms in fit} - {"fit"}:
        yield "the fit was to rows on which its result was compared"
    for terms in compared:
        asked = terms["algorithm"]
        cut = asked["bound"] if asked["metric"] == "log_loss" else None
        if (asked["metric"], cut) != (gain["metric"], gain["cut"]):
            yield "the comparison was of another metric, or with another cut"
        for name in ("method", "settings", "numbers", "shapes"):
            if not _alike(asked[name], map_[name]):
                yield "the comparison was of another map than that of the calibrator"
                return


def _alike(a: Any, b: Any) -> bool:
    """Whether two plain values are the same up to rounding."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)


def _read(path: Any) -> tuple[dict[str, Any], bytes | None, bytes | None]:
    """Content, key and signature of a file."""
    where = str(path)
    try:
        found = check_format(
            read_file(path), where, "a result of skfedcal", _FORMAT, _FORMAT_VERSION
        )
        content = member(found, "content", dict, where)
        for name, kind in _MEMBERS.items():
            member(content, name, kind, where)
        for run in content["runs"]:
            member(run, "what", str, where)
            member(run, "terms", list, where)
            for record in member(run, "rounds", list, where):
                member(record, "left_out", dict, where)
                member(record, "answered", list, where)
        key, signature = (
            None if found.get(name) is None else bytes.fromhex(found[name])
            for name in ("operator", "signature")
        )
    except OSError as error:
        text = f"{where} cannot be read: {error.strerror or error}."
        raise ResultError(text, "file") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ResultError(str(error), "file") from error
    return content, key, signature


def _check_roster(
    where: str, content: Mapping[str, Any], public: bytes, roster: Roster
) -> None:
    if roster.operator != public:
        raise ResultError(
            f"{where} is signed by {public.hex()[:16]}, which is not the operator of "
            "the roster.",
            "signature",
        )
    unknown = sorted(set(content["sites"]) - set(roster.sites))
    if unknown:
        raise ResultError(
            f"{where} names the site {unknown[0]!r}, which is not in the roster.",
            "signature",
        )


def _check_chain(where: str, content: Mapping[str, Any]) -> None:
    last = sha256(_CHAIN).hexdigest()
    for run in content["runs"]:
        for record in run["rounds"]:
            last = _next_hash(last, run, record)
            if record.get("hash") != last:
                raise ResultError(
                    f"{where}: the hash of round {record.get('round')} of the run "
                    f"{run['what']!r} is not that of its content.",
                    "chain",
                )


def check_ledger(content: Mapping[str, Any], site: str, path: PathLike) -> list[str]:
    """Raise ResultError unless a site was debited what the result states.

    site: Name of the site; empty is any that took part in all runs.
    Result: Runs whose debits were found; none for a site that is in no sum.
    """
    path = as_path(path)
    if site and site not in content["sites"]:
        raise ResultError(f"{path}: the result has no site {site!r}.", "ledger")
    try:
        if not path.is_file():
            raise FileNotFoundError("no such file")
        records = PrivacyLedger(path).records()
    except (OSError, LedgerCorruptedError) as error:
        raise ResultError(f"{path} is not a ledger: {error}", "ledger") from error
    checked = []
    for run in content["runs"]:
        rounds = [
            r["round"] for r in run["rounds"] if not site or site in r["answered"]
        ]
        if rounds:
            paid = [
                record
                for terms in run["terms"]
                for record in _debits(str(path), records, run["what"], terms)
            ]
            _check_rounds(str(path), run["what"], paid, rounds)
            checked.append(run["what"])
    return checked


def _debits(path: str, records: list[Any], what: str, terms: str) -> list[Any]:
    """Records of what was asked, which must have the cost that was claimed."""
    about, claim = terms_hash(terms).hex(), parse(terms, "terms")["claim"]
    paid = [r for r in records if (r["details"] or {}).get("terms") == about]
    what = f"the run {what!r} ({about[:16]})"
    if not paid:
        raise ResultError(f"{path} has no record of {what}.", "ledger")
    if {r["mode"] == "exact" for r in paid} != {claim is None}:
        raise ResultError(
            f"{path} and the result disagree on whether {what} had noise.", "ledger"
        )
    central = [r for r in paid if r["details"].get("noise") == "central"]
    for record in central:
        if record["event"] != claim:
            raise ResultError(
                f"{path} was debited {record['event']} for {what}, the result states "
                f"{claim}.",
                "ledger",
            )
    return paid


def _check_rounds(path: str, what: str, paid: list[Any], rounds: list[int]) -> None:
    """Noise of sites is debited in every round that they answer."""
    each = [r for r in paid if r["details"].get("noise") in ("shared", "own")]
    found = [r["details"].get("round") for r in each]
    for number in rounds if each else ():
        if found.count(number) < rounds.count(number):
            raise ResultError(
                f"{path} has no record of round {number} of the run {what!r}.", "ledger"
            )

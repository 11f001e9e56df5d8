"""Data-protection summary of a ledger: what its records say, and what they cannot.

`summary_of` turns verified records and, if given, saved results into plain values.
`as_text` and `as_markdown` write these. Every text that comes from a file is cleaned
first: a ledger is read by people who did not write it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skfedcal._json import check_format, member, read_file
from skfedcal._table import text_table
from skfedcal._version import __version__

if TYPE_CHECKING:
    from skfedcal.privacy import PrivacyLedger
    from skfedcal.privacy.events import PrivacyEvent, PrivacyReport

FORMAT, FORMAT_VERSION = "skfedcal-data-protection-summary", 1
WIDTH = 88
UNKNOWN = "not recorded"
RESULT_FILE = (
    "a calibrator written by `skfedcal fit` or `save`, the result of a run over sites, "
    "or a histogram"
)
_INF = {"float": "inf"}
# Eps of a saved result against that of its debit: for rounding.
_RTOL = 1e-6

# What parties see under a trust model, and what one that deviates could read. The first
# word of `privacy_.trust`, and the noise of a site's ledger, name the model.
TRUST = {
    "exact": {
        "noise": "nobody adds noise",
        "server": "exact sums over clients. In one process: all rows",
        "public": "results made of exact sums; no eps bounds what they reveal",
        "deviation": "A server can ask for sums over few clients, or for two sums that "
        "differ by one client. Masks and the policy of a site limit this; noise does "
        "not.",
    },
    "central": {
        "noise": "the server adds the noise to the sum",
        "server": "exact sums over clients. In one process: all rows",
        "public": "results made of noisy sums; eps holds",
        "deviation": "A server that deviates reads exact sums, or leaves out the "
        "noise. No record of a ledger would show it: eps holds against everybody else.",
    },
    "distributed": {
        "noise": "clients add shares of the noise",
        "server": "sums that contain their noise, if masks hide single answers",
        "public": "the same noisy sums; eps holds",
        "deviation": "To see more, a server needs answers without masks, or more "
        "clients that reveal their shares than the noise allows for.",
    },
    "local": {
        "noise": "each client randomises its own report",
        "server": "randomised reports of single clients; eps holds for each",
        "public": "sums of these reports; eps holds",
        "deviation": "A server that deviates learns no more than the reports. Clients "
        "that deviate can change the result, not read others.",
    },
    "source": {
        "noise": "each client adds the noise to its own sums",
        "server": "noisy sums of single clients; eps holds for one row",
        "public": "their total; eps holds for one row",
        "deviation": "A server that deviates learns no more than the noisy sums. They "
        "show what is common to all rows of a client.",
    },
}
TRUST["own"] = TRUST["local"] | {
    "noise": "the site randomises or noises its own answer",
    "server": "answers of single sites, each with its own noise; eps holds for each",
}
SIMULATED = (
    "Whoever ran the simulation held the exact values, or a seed with which the noise "
    "can be removed: eps protects nobody here."
)
# Words of a site's ledger for who draws the noise.
_SITE_NOISE = {
    "none": "exact",
    "central": "central",
    "shared": "distributed",
    "own": "own",
}

ADJACENCY = {
    "zero-out": "one unit sends zeros instead of its values; the number of units is "
    "public",
    "replace": "one unit sends any other values; the number of units is public",
    "any two values": "one unit has any two values",
}


def clean(text: object, longest: int = 80) -> str:
    """Return text of a file on one line, without characters that control a screen."""
    words = "".join(c if c.isprintable() else " " for c in str(text)).split()
    short = " ".join(words)
    return short if len(short) <= longest else f"{short[: longest - 3]}..."


def day_of(seconds: Any) -> str:
    """Return the day of a time stamp, in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError, TypeError):
        return "no valid date"


def above(value: float) -> str:
    """Return three digits that are not below the value."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    shown = f"{value:.3g}"
    return shown if float(shown) >= value * (1 - 1e-9) else f"{value + unit / 2:.3g}"


def below(value: float) -> str:
    """Return three digits that are not above the value."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    shown = f"{value:.3g}"
    return shown if float(shown) <= value * (1 + 1e-9) else f"{value - unit / 2:.3g}"


@dataclass(frozen=True, slots=True)
class Result:
    """A saved calibrator, histogram or result of sites, with its guarantee."""

    file: str
    what: str
    report: PrivacyReport
    statement: str | None = None
    runs: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: str) -> Result:
        """Read the file; ValueError if it has no statement of privacy."""
        from skfedcal.evaluation.histogram import read_report

        found = read_file(path)
        kind = found.get("format") if isinstance(found, dict) else None
        if kind not in (
            "skfedcal-calibrator",
            "skfedcal-result",
            "skfedcal-histogram",
        ):
            raise ValueError(f"{path} has no `privacy_`. Expected {RESULT_FILE}.")
        content = check_format(found, path, RESULT_FILE, kind, 1)
        statement = runs = None
        if kind == "skfedcal-result":
            outer = runs = member(content, "content", dict, path)
            member(outer, "sites", dict, path)
            for run in member(outer, "runs", list, path):
                member(run, "terms", list, path)
                member(run, "rounds", list, path)
            stated = member(outer, "privacy", dict, path)
            statement = clean(member(stated, "statement", str, path), 400)
            content = member(outer, "calibrator", dict, path)
        what = content.get("estimator") or "histogram of scores"
        try:
            report = read_report(_decoded(member(content, "privacy", dict, path)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}.") from error
        return cls(Path(path).name, clean(what), report, statement, runs)


def _decoded(privacy: dict[str, Any]) -> dict[str, Any]:
    """Fields of a report, in which a saved calibrator writes infinity its own way."""
    return privacy | {"eps": "inf"} if privacy.get("eps") == _INF else privacy


@dataclass(frozen=True, slots=True)
class Release:
    """One record of a ledger, in the words of the summary."""

    record: dict[str, Any]

    @property
    def details(self) -> dict[str, Any]:
        return self.record["details"] or {}

    @property
    def mode(self) -> str:
        return str(self.record["mode"])

    def field(self, name: str, kind: type = str) -> Any:
        """Return one detail; None if it is absent or of another type."""
        value = self.details.get(name)
        fits = isinstance(value, kind) and not isinstance(value, bool)
        return (clean(value) if kind is str else value) if fits else None

    @property
    def event(self) -> PrivacyEvent:
        from skfedcal.privacy.ledger_file import read_event

        return read_event(self.record["event"])

    @property
    def trust(self) -> str | None:
        """Trust model by its word in `TRUST`; None if the record does not say."""
        if self.mode == "exact":
            return "exact"
        word = (self.field("trust") or "").partition(":")[0]
        word = word or _SITE_NOISE.get(self.field("noise") or "", "")
        return word if word in TRUST else None

    @property
    def cost(self) -> str:
        """Mechanism and cost."""
        if self.mode == "exact":
            return "no noise: no eps"
        event = self.event.to_dict()
        if event["kind"] == "gaussian":
            rounds = self.field("n_rounds", int)
            text = f"Gaussian noise, mu {above(event['mu'])}"
            if rounds and event["mu"]:
                each = below(math.sqrt(rounds) / event["mu"])
                text += f": {rounds} rounds, standard deviation {each} x the bound"
            return text
        if event["kind"] == "pure":
            local = self.trust == "local"
            name = "randomised reports" if local else "Laplace noise or reports"
            return f"{name}, pure eps {above(event['eps'])}"
        return (
            f"Gaussian noise, {event['n_rounds']} rounds, standard deviation "
            f"{below(event['noise_multiplier'])} x the bound, clients sampled at rate "
            f"{event['sampling_rate']:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "number": self.record["n"] + 1,
            "id": clean(self.record["id"]),
            "date": day_of(self.record["t"]),
            "label": clean(self.record["label"]),
            "population": clean(self.record["population"]),
            "mode": self.mode,
            "unit": self.field("unit"),
            "n_units": self.field("n_units", int),
            "adjacency": self.field("adjacency"),
            "trust": self.trust,
            "noise": self.cost,
        }


def summary_of(
    ledger: PrivacyLedger,
    delta: float,
    budget: Sequence[float] | None,
    results: Sequence[Result] = (),
    *,
    head_checked: bool = False,
) -> dict[str, Any]:
    """Return the summary as plain values."""
    records = ledger.records()
    releases = [Release(r) for r in records if r["mode"] != "raise"]
    raises = [r for r in records if r["mode"] == "raise"]
    times = [r["t"] for r in records]
    out: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "skfedcal": __version__,
        "made": datetime.now(UTC).date().isoformat(),
        "file": clean(Path(ledger.path or "").name),
        "head": ledger.head,
        "head_checked": head_checked,
        "first": day_of(min(times)) if times else None,
        "last": day_of(max(times)) if times else None,
        "times_in_order": times == sorted(times),
        "delta": delta,
        "budget": None if budget is None else list(budget),
        "raises": [
            {
                "date": day_of(record["t"]),
                "budget": record["details"]["budget"],
                "reason": clean(record["details"]["reason"], 400),
                "signed": bool(record["details"]["signature"]),
            }
            for record in raises
        ],
        "holds_at": sum(level[1] for level in ledger.budgets()) or None,
        "releases": [release.to_dict() for release in releases],
        "populations": _populations(ledger, releases, delta, budget),
        "results": [_result_values(result, releases) for result in results],
    }
    out["contradictions"] = [
        text
        for result in results
        for text in (
            contradictions(result, releases)
            if result.runs is None
            else site_contradictions(result, releases, ledger.path)
        )
    ]
    out["trust"] = _trust_rows(releases, results)
    out["dpia"] = [question.to_dict() for question in dpia(out)]
    return out


def _populations(
    ledger: PrivacyLedger,
    releases: Sequence[Release],
    delta: float,
    budget: Sequence[float] | None,
) -> list[dict[str, Any]]:
    from skfedcal.privacy.ledger_file import Totals

    names = sorted({release.record["population"] for release in releases})
    out = []
    for name in names:
        own = [r for r in releases if r.record["population"] == name]
        paid = [r for r in own if r.mode != "exact"]
        real = [r for r in paid if r.mode == "secure"]
        charged = ledger.spent(delta, name)
        totals = Totals([r.record for r in real])
        totals.catch_up("the ledger")
        alone = totals.account(name).epsilon(delta, None if not budget else budget[0])
        out.append(
            {
                "name": clean(name),
                "debits": len(paid),
                "simulated": len(paid) - len(real),
                "exact": len(own) - len(paid),
                "units": _distinct(r.field("unit") for r in paid),
                "n_units": max(
                    (r.field("n_units", int) or 0 for r in own), default=0
                ) or None,
                "adjacency": _distinct(r.field("adjacency") for r in paid),
                "eps": _finite(charged),
                "eps_of_real_noise": _finite(alone),
                "eps_left": None if not budget else max(0.0, budget[0] - charged),
            }
        )  # fmt: skip
    return out


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _distinct(values: Iterable[str | None]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value is not None]


def _result_values(result: Result, releases: Sequence[Release]) -> dict[str, Any]:
    report = result.report
    numbers = {release.record["id"]: release.record["n"] + 1 for release in releases}
    return {
        "file": clean(result.file),
        "what": result.what,
        "statement": result.statement,
        "eps": _finite(report.eps),
        "delta": report.delta,
        "unit": clean(report.unit),
        "adjacency": clean(report.adjacency),
        "n_units": report.n_clients,
        "trust": clean(report.trust, 400),
        "simulated": report.private and not report.secure,
        "accountant": clean(report.accountant),
        "noise_multiplier": report.noise_multiplier,
        "n_rounds": report.n_rounds,
        "bounds": {clean(name): value for name, value in report.clip.items()},
        "assumptions": [clean(text, 400) for text in report.assumptions],
        "records": [numbers[i] for i in report.ledger_ids if i in numbers]
        or _site_records(result, releases),
    }


def _site_records(result: Result, releases: Sequence[Release]) -> list[int]:
    """Return the records of a site that are about what a result's runs asked."""
    from skfedcal.federation.wire import terms_hash

    if result.runs is None:
        return []
    terms = [text for run in result.runs["runs"] for text in run["terms"]]
    asked = {terms_hash(text).hex() for text in terms if isinstance(text, str)}
    return [r.record["n"] + 1 for r in releases if r.details.get("terms") in asked]


def site_contradictions(
    result: Result, releases: Sequence[Release], path: str | None
) -> list[str]:
    """Compare a result of sites with the ledger of a site, or of the operator."""
    from skfedcal.compose.site_results import check_ledger
    from skfedcal.exceptions import ResultError

    # The operator's account has the debits that the report names.
    if {r.record["id"] for r in releases} & set(result.report.ledger_ids):
        return contradictions(result, releases)
    assert result.runs is not None and path is not None
    try:
        check_ledger(result.runs, "", path)
    except ResultError as error:
        return [f"{clean(result.file)}: {clean(error, 400)}".rstrip(".")]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{result.file} is damaged: {error!r}") from error
    return []


def contradictions(result: Result, releases: Sequence[Release]) -> list[str]:
    """Say where a saved result and the ledger do not agree."""
    report, name = result.report, clean(result.file)
    by_id = {release.record["id"]: release for release in releases}
    paid = [by_id[i] for i in report.ledger_ids if i in by_id]
    missing = [clean(i)[:12] for i in report.ledger_ids if i not in by_id]
    out = []
    if missing:
        out.append(f"{name} names debits that are not in this ledger: {missing}")
    if report.private and report.eps > 0 and not report.ledger_ids:
        out.append(f"{name} states eps = {report.eps:g} and names no debit")
    if not report.private and paid:
        out.append(f"{name} states no eps, and names debits of this ledger")
    for release in paid:
        number = release.record["n"] + 1
        if report.secure and release.mode != "secure":
            out.append(f"{name} claims real noise, record {number} is a simulation")
        unit = release.field("unit")
        if unit is not None and unit != report.unit:
            out.append(
                f"{name} protects one {clean(report.unit)}, record {number} one {unit}"
            )
    if paid and not missing and report.private:
        eps = _composed([release.event for release in paid], report.delta)
        if not eps <= report.eps * (1 + _RTOL):
            out.append(
                f"{name} states eps = {report.eps:.4g} at delta = {report.delta:.3g}; "
                f"its debits cost eps = {eps:.4g}"
            )
    return out


def _composed(events: list[PrivacyEvent], delta: float) -> float:
    """Eps of debits that were fixed in advance; infinite where delta is too small."""
    from skfedcal.privacy import compose_epsilon
    from skfedcal.privacy.events import PureEvent

    pure = [event for event in events if isinstance(event, PureEvent)]
    if len(pure) == len(events):
        slack = sum(event.delta_slack for event in pure)
        total = sum(event.eps + event.eps_slack for event in pure)
        return total if slack <= delta * (1 + _RTOL) else math.inf
    return compose_epsilon(events, delta) if 0 < delta < 1 else math.inf


def _trust_rows(
    releases: Sequence[Release], results: Sequence[Result]
) -> list[dict[str, Any]]:
    """Return what parties see, by trust model, of real and of simulated releases."""
    found: dict[tuple[str, bool], list[int]] = {}
    for release in releases:
        key = release.trust or "", release.mode == "simulation"
        found.setdefault(key, []).append(release.record["n"] + 1)
    for result in results:
        report = result.report
        word = report.trust.partition(":")[0] if report.private else "exact"
        if not any(known == word for known, _ in found):
            found[
                word if word in TRUST else "", report.private and not report.secure
            ] = []
    out = []
    for (word, simulated), numbers in sorted(found.items()):
        row = dict(TRUST[word]) if word else {}
        if simulated:
            row["deviation"] = SIMULATED
        out.append(
            {
                "model": word or UNKNOWN,
                "simulated": simulated,
                "records": numbers,
                **row,
            }
        )
    return out


@dataclass(frozen=True, slots=True)
class Question:
    """A part of an impact assessment: what the files say, and what they cannot."""

    article: str
    question: str
    answers: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "article": self.article,
            "question": self.question,
            "from_the_files": self.answers,
            "to_be_answered_by_the_controller": self.open,
        }


def dpia(data: dict[str, Any]) -> list[Question]:
    """Return the questions of GDPR Art. 35(7), with the answers that files have."""
    return [
        Question(
            "Art. 35(7)(a)",
            "Systematic description of the processing and its purposes",
            _description(data),
            [
                "Purpose of the calibration, and which decisions use the probabilities "
                "(Art. 22, if automated).",
                "Legal basis (Art. 6, and Art. 9 for health or other special "
                "categories).",
                "Categories of persons and of personal data in the rows; what one row "
                "and one client are (a person, a device, a hospital).",
                "Controllers, joint controllers and processors (Art. 26 and 28), where "
                "the server runs, transfers to third countries.",
                "How long rows, released sums, ledger and results are stored.",
            ],
        ),
        Question(
            "Art. 35(7)(b)",
            "Necessity and proportionality",
            _proportion(data),
            [
                "Why calibration is needed, and why public, synthetic or fewer data "
                "would not do.",
                "Why this eps and delta, and who decided on the budget.",
                "How persons are informed and can use their rights (Art. 12 to 22); "
                "noise and sums cannot be undone for one person.",
            ],
        ),
        Question(
            "Art. 35(7)(c)",
            "Risks to the rights and freedoms of persons",
            _risks(data),
            [
                "Likelihood and severity of each risk for the persons concerned.",
                "What a wrong or noisy probability can cause (a treatment, a refusal).",
                "The classifier itself: its training and its scores are not covered by "
                "this ledger.",
                "Other releases from the same rows that were not debited here.",
            ],
        ),
        Question(
            "Art. 35(7)(d)",
            "Measures, safeguards and evidence",
            _measures(data),
            [
                "Access control, storage and transport of rows, keys, ledger and head.",
                "Agreements that bind the server where the trust model relies on it.",
                "Advice of the data protection officer (Art. 35(2)), views of persons "
                "concerned (Art. 35(9)), review (Art. 35(11)), prior consultation "
                "(Art. 36).",
            ],
        ),
    ]


def _description(data: dict[str, Any]) -> list[str]:
    releases = data["releases"]
    if not releases:
        return ["The ledger has no release."]
    labels = list(dict.fromkeys(release["label"] for release in releases))
    shown = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
    out = [
        f"{_count(len(releases), 'release')} between {data['first']} and "
        f"{data['last']} (UTC, by the clocks of the writing machines): {shown}.",
        "Each release is a sum over clients of numbers that a client computes from the "
        "scores and labels of its own rows. The library sends no row.",
    ]
    for row in data["trust"]:
        if "server" in row:
            real = " (simulated)" if row["simulated"] else ""
            out.append(f"The server sees, {row['model']}{real}: {row['server']}.")
    return out


def _proportion(data: dict[str, Any]) -> list[str]:
    out = []
    if data["budget"] is None:
        out.append("No budget: nothing in the ledger limits further releases.")
    else:
        eps, delta = data["budget"]
        out.append(
            f"Budget of each population: eps {eps:g} at delta {delta:g}. A debit "
            "beyond it is refused before noise is drawn."
        )
    out += [f"{_account_text(account, data)}." for account in data["populations"]]
    return out


def _account_text(account: dict[str, Any], data: dict[str, Any]) -> str:
    eps = account["eps"]
    text = f"Population {account['name']!r}: "
    if not account["debits"]:
        return text + "no debit"
    text += "no finite eps" if eps is None else f"eps {above(eps)} is charged"
    text += f" at delta {data['delta']:g}"
    if account["eps_left"] is not None:
        text += f", {below(account['eps_left'])} is left"
    return text


def _risks(data: dict[str, Any]) -> list[str]:
    out = []
    for account in data["populations"]:
        eps = account["eps_of_real_noise"]
        if account["debits"] > account["simulated"] and eps is not None:
            odds = f"{above(math.exp(eps))}" if eps < 20 else "more than 10^8"
            out.append(
                f"Population {account['name']!r}: releases with real noise change the "
                f"odds of any statement about one {_units(account)} by a factor of at "
                f"most {odds} (exp of eps {above(eps)}), but for a probability of "
                f"{data['delta']:g}. For a group of k, eps is k times as large, and "
                f"delta grows too. {_adaptive(data)}"
            )
        if account["simulated"]:
            out.append(
                f"Population {account['name']!r}: "
                f"{_count(account['simulated'], 'simulated release')}. {SIMULATED}"
            )
        if account["exact"]:
            out.append(
                f"Population {account['name']!r}: "
                f"{_count(account['exact'], 'answer')} without noise, which no eps "
                "covers."
            )
        if "example" in account["units"]:
            out.append(
                f"Population {account['name']!r}: one row is protected. A person with "
                "several rows has less protection."
            )
    out += [row["deviation"] for row in data["trust"] if "deviation" in row]
    if any(row["model"] == UNKNOWN for row in data["trust"]):
        out.append(
            "Some records do not say who adds the noise: see the open questions."
        )
    return out or ["Nothing was released."]


def _adaptive(data: dict[str, Any]) -> str:
    """Bound for releases that were chosen by what earlier ones showed."""
    text = "If releases were chosen by what earlier ones showed, "
    if data["budget"] is None:
        return text + "no bound is proved: there is no budget."
    return text + f"the proved bound is the budget, eps {data['budget'][0]:g}."


def _measures(data: dict[str, Any]) -> list[str]:
    out = [
        "Debits are written before noise is drawn. Each record has a hash of all "
        "records before it, and all were checked.",
        "The file has the head that was written down earlier."
        if data["head_checked"]
        else "No head was given (--head): a ledger that was cut, or written anew as a "
        "whole, looks like this one.",
    ]
    if data["raises"]:
        unsigned = sum(not entry["signed"] for entry in data["raises"])
        out.append(
            f"The budget was raised {_count(len(data['raises']), 'time')}, "
            f"{unsigned} of them unsigned. It holds at delta {data['holds_at']:g}, the "
            "sum of the deltas of all budgets."
        )
    for result in data["results"]:
        bounds = ", ".join(
            f"{name} {value:.4g}"
            for name, value in result["bounds"].items()
            if value is not None
        )
        if bounds:
            out.append(f"{result['file']}: bound on what one unit sends: {bounds}.")
    return out


def _units(account: dict[str, Any]) -> str:
    return " or ".join(account["units"]) or "unit (client or row: not recorded)"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


# The document: titles, paragraphs, lists and tables, from which both forms are written.


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a document."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Points:
    """A list of a document."""

    items: list[str]


@dataclass(frozen=True, slots=True)
class Title:
    """A heading; level 1 is the document."""

    text: str
    level: int = 2


Part = str | Table | Points | Title

CONVERSION = (
    "Conversion: Gaussian releases add up as squares of mu (Gaussian differential "
    "privacy), which is turned into eps at the stated delta by the exact formula; pure "
    "eps adds up. Releases may have been chosen one after the other: what is proved "
    "for them is the budget, and eps is what its privacy filters charge."
)
ONE_PROCESS = (
    "Where clients were rows of one process, whoever ran it had all rows, whatever the "
    "trust model says. The ledger does not record whether clients were sites."
)
PREAMBLE = (
    "Made by skfedcal from the files named here. It states what these files say. It is "
    "no legal advice and no impact assessment; open points are listed."
)


def document(data: dict[str, Any]) -> list[Part]:
    """Return the parts of the document in the order of reading."""
    parts: list[Part] = [
        Title("Data-protection summary", 1),
        PREAMBLE,
        Table(["", ""], _facts(data)),
    ]
    if data["contradictions"]:
        parts += [
            Title("CONTRADICTIONS between result and ledger"),
            Points(data["contradictions"]),
        ]
    parts += [Title("What was processed"), *_processed(data)]
    parts += [Title("Unit, neighbouring relation, eps spent and left")]
    parts += _accounts(data)
    parts += [Title("Who sees what, and what a party that deviates could read")]
    parts += _parties(data)
    for result in data["results"]:
        parts += [Title(f"Result {result['file']}"), Table(["", ""], _stated(result))]
    parts += [Title("Questions of a data protection impact assessment (GDPR Art. 35)")]
    for question in data["dpia"]:
        parts += [
            Title(f"{question['article']}: {question['question']}", 3),
            "From the files:",
            Points(question["from_the_files"]),
            "To be answered by the controller:",
            Points(question["to_be_answered_by_the_controller"]),
        ]
    return parts


def _facts(data: dict[str, Any]) -> list[list[str]]:
    dates = f"{data['first']} to {data['last']}" if data["first"] else "no record"
    order = "" if data["times_in_order"] else ", NOT in order"
    checked = "occurs" if data["head_checked"] else "none given"
    return [
        ["ledger", data["file"]],
        ["made", f"{data['made']}, skfedcal {data['skfedcal']}"],
        ["records", dates + order],
        ["hash chain", "intact"],
        ["head given", checked],
        ["head", data["head"]],
    ]


def _processed(data: dict[str, Any]) -> list[Part]:
    groups = {
        "Releases with real noise": "secure",
        "Simulations (no protection; kept apart)": "simulation",
        "Exact answers (no noise, no eps)": "exact",
    }
    parts: list[Part] = []
    for title, mode in groups.items():
        rows = [
            [
                str(release["number"]),
                release["date"],
                release["label"],
                release["population"],
                str(release["n_units"] or UNKNOWN),
                release["noise"],
            ]
            for release in data["releases"]
            if release["mode"] == mode
        ]
        if rows:
            header = ["no.", "date", "what", "population", "units", "mechanism"]
            parts += [f"{title}: {len(rows)}.", Table(header, rows)]
    for entry in data["raises"]:
        eps, delta = entry["budget"]
        signed = "signed" if entry["signed"] else "not signed"
        parts.append(
            f"{entry['date']}: budget raised to eps {eps:g}, delta {delta:g} "
            f"({signed}): {entry['reason']}"
        )
    return parts or ["The ledger has no record."]


def _accounts(data: dict[str, Any]) -> list[Part]:
    rows = []
    for account in data["populations"]:
        left = account["eps_left"]
        rows.append(
            [
                account["name"],
                " or ".join(account["units"]) or UNKNOWN,
                "infinite" if account["eps"] is None else above(account["eps"]),
                "no budget" if left is None else below(left),
                str(account["debits"]),
                str(account["simulated"]),
                str(account["exact"]),
            ]
        )
    header = [
        "population",
        "unit protected",
        f"eps at delta {data['delta']:g}",
        "eps left",
        "debits",
        "simulated",
        "exact",
    ]
    if not rows:
        return ["Nothing was debited: no eps is spent."]
    parts: list[Part] = [Table(header, rows), _relations(data), CONVERSION]
    if any(account["simulated"] for account in data["populations"]):
        parts.append(
            "Simulated debits are charged to the account as well. They protect nobody, "
            "so that eps is a guarantee only for releases with real noise."
        )
    return parts


def _relations(data: dict[str, Any]) -> str:
    """Return the neighbouring relations of the debits, and how many have none."""
    paid = [r["adjacency"] for r in data["releases"] if r["mode"] != "exact"]
    if not paid:
        return "Neighbouring relation: none, because no release has noise."
    known = _distinct(paid)
    texts = [
        f"{name} ({ADJACENCY[name]})" if name in ADJACENCY else name for name in known
    ]
    if missing := paid.count(None):
        where = f" in {missing} of {len(paid)} debits" if known else ""
        texts.append(f"{UNKNOWN}{where}")
    return f"Neighbouring relation: {'; '.join(texts)}."


def _parties(data: dict[str, Any]) -> list[Part]:
    parts: list[Part] = [ONE_PROCESS] if data["trust"] else []
    for row in data["trust"]:
        mark = ", SIMULATED" if row["simulated"] else ""
        numbers = row["records"]
        shown = ", ".join(map(str, numbers[:12])) + (", ..." if numbers[12:] else "")
        where = f"records {shown}" if numbers else "of the result"
        if "server" not in row:
            parts.append(
                f"Trust model not recorded ({where}): to be answered by the "
                "controller, or pass the saved result (--result)."
            )
            continue
        parts += [
            f"{row['model']}{mark} ({where}): {row['noise']}.",
            Points(
                [
                    f"server: {row['server']}",
                    "other clients: what is published between rounds",
                    f"public: {row['public']}",
                    f"who deviates: {row['deviation']}",
                ]
            ),
        ]
    return parts or ["Nobody was asked anything."]


def _stated(result: dict[str, Any]) -> list[list[str]]:
    eps = "none: exact sums" if result["eps"] is None else f"{result['eps']:.4g}"
    mark = "SIMULATED: " if result["simulated"] else ""
    records = ", ".join(map(str, result["records"])) or "none of this ledger"
    # A result over sites also paid for the comparison: see its statement.
    whole = "" if result["statement"] is None else " of the fit alone"
    rows = [
        ["what", result["what"]],
        [f"eps, delta{whole}", f"{mark}{eps}, {result['delta']:.3g}"],
        ["protects", f"one {result['unit']} of {result['n_units']}"],
        ["neighbours", result["adjacency"]],
        ["trust", result["trust"]],
        *(
            [
                ["noise", f"{result['noise_multiplier']:.4g} x the bound, per round"],
                ["rounds", f"{result['n_rounds']}, accountant {result['accountant']}"],
            ]
            if result["eps"]
            else []
        ),
        ["paid by records", records],
        *(["assumes", text] for text in result["assumptions"]),
    ]
    if result["statement"] is not None:
        rows.insert(1, ["statement", result["statement"]])
        rows.append(["signature", "not checked here: skfedcal verify"])
    return rows


def as_text(data: dict[str, Any]) -> str:
    """Write the document for a terminal."""
    lines: list[str] = []
    for part in document(data):
        if isinstance(part, Title):
            mark = {1: "=", 2: "-"}.get(part.level)
            lines += ["", part.text, *([mark * len(part.text)] if mark else [])]
        elif isinstance(part, Points):
            for item in part.items:
                lines += textwrap.wrap(
                    item, WIDTH, initial_indent="  - ", subsequent_indent="    "
                )
        elif isinstance(part, Table):
            lines += ["", *_text_rows(part), ""]
        else:
            lines += textwrap.wrap(part, WIDTH)
    return "\n".join(lines).strip()


def _text_rows(table: Table) -> list[str]:
    if any(table.header):
        return text_table(table.header, table.rows, len(table.header)).splitlines()
    width = max(len(name) for name, _ in table.rows)
    return [f"{name:<{width}}  {value}" for name, value in table.rows]


def as_markdown(data: dict[str, Any]) -> str:
    """Write the document in Markdown; text of files is escaped."""
    blocks = []
    for part in document(data):
        if isinstance(part, Title):
            blocks.append(f"{'#' * part.level} {_escaped(part.text)}")
        elif isinstance(part, Points):
            blocks.append("\n".join(f"- {_escaped(item)}" for item in part.items))
        elif isinstance(part, Table):
            lines = [part.header, ["---"] * len(part.header), *part.rows]
            cells = ([_escaped(c) if i != 1 else c for c in row]
                     for i, row in enumerate(lines))  # fmt: skip
            blocks.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
        else:
            blocks.append(_escaped(part))
    return "\n\n".join(blocks)


def _escaped(text: str) -> str:
    for mark in "\\`*_{}[]<>#|!":
        text = text.replace(mark, f"\\{mark}")
    return text

"""The boundary of a site with its fixes taken out, one after the other.

Run ``python tests/federation/boundary_mutants.py`` for a table: each mutant takes out
one check, and the property test, an attack of the site audit or a unit test must find
it. Without the change the same detector finds nothing.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from skfedcal.exceptions import SiteRefusalError
from skfedcal.federation import Site, SitePolicy, SiteRows, endpoint
from skfedcal.federation import attacks as server
from skfedcal.federation import policy as _admission
from skfedcal.federation.endpoint import WordPlan, plan_words
from skfedcal.federation.reading import Reading
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, ScoreCounts
from skfedcal.privacy import GaussianEvent, PureEvent
from skfedcal.privacy.site_ledger import SiteLedger, site_epsilon

Patch = contextlib.AbstractContextManager[Any]


def load(name: str) -> Any:
    """Module of this folder: tests are no package."""
    known = sys.modules.get(name)
    if known is not None:
        return known
    file = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------ the mutants


def visible_words(self: Site, admitted: Any) -> Any:
    """Words of an answer as they were: whatever fails is raised."""
    request = admitted.request
    own = self._own_rows(request)
    position = None
    if admitted.position is not None:
        position = np.array([admitted.position])
    answer = endpoint.respond(request, own.clients, position)
    if request.unit == "example":
        answer = replace(answer, n_units=own.n_rows)
    return admitted.words.encode(answer)


def failures_are_raised() -> Patch:
    return mock.patch.object(Site, "_words", visible_words)


def no_oracle_check() -> Patch:
    return mock.patch.object(_admission, "_check_oracle")


@contextlib.contextmanager
def oracle_domain_and_failures() -> Iterator[None]:
    with no_oracle_check(), failures_are_raised():
        yield


def bits_of_many_cells() -> Patch:
    check = _admission._check_oracle

    def lax(name: str, oracle: Any, n_cells: int) -> None:
        if oracle.kind != "rr":
            check(name, oracle, n_cells)

    return mock.patch.object(_admission, "_check_oracle", lax)


@contextlib.contextmanager
def no_class_check() -> Iterator[None]:
    with (
        mock.patch.object(ScoreCounts, "_check_classes"),
        mock.patch.object(ClassScoreCounts, "_check_classes"),
    ):
        yield


@contextlib.contextmanager
def class_list_and_failures() -> Iterator[None]:
    with no_class_check(), failures_are_raised():
        yield


def unfit_rows_are_refused() -> Patch:
    own_rows = Site._own_rows

    def refusing(self: Site, request: Any) -> Any:
        own = own_rows(self, request)
        if any(own.unfit.values()):
            raise SiteRefusalError("its rows do not fit the request")
        return own

    return mock.patch.object(Site, "_own_rows", refusing)


def error_types_are_sent() -> Patch:
    read = Reading.read

    def strict(self: Site, request: Any) -> Any:
        own = read(request.reading, self._rows, self.name)
        if any(own.unfit.values()):
            raise KeyError("label")
        return own

    return mock.patch.object(Site, "_own_rows", strict)


@contextlib.contextmanager
def row_count_by_width() -> Iterator[None]:
    """Words for the number of rows that the server announces; more are refused."""
    encode = WordPlan.encode

    def announced(request: Any, *, masked: bool) -> WordPlan:
        by_row = request.unit == "example"
        return plan_words(
            request.codec,
            request.randomizer,
            n_clients=max(request.n_clients, 1),
            n_units=20 * max(request.n_clients, 1),
            by_row=by_row,
            count_units=by_row and masked,
        )

    def strict(self: WordPlan, answer: Any) -> Any:
        if answer.n_units > self.n_units:
            raise ValueError(f"more than {self.n_units} rows")
        return encode(self, answer)

    with (
        mock.patch.object(_admission, "request_words", announced),
        mock.patch.object(WordPlan, "encode", strict),
    ):
        yield


def row_count_beside_the_answer() -> Patch:
    words = _admission.request_words

    def counted(request: Any, *, masked: bool) -> WordPlan:
        return words(request, masked=True)

    return mock.patch.object(_admission, "request_words", counted)


def sums_are_not_checked() -> Patch:
    return mock.patch.object(WordPlan, "fault", return_value="")


def larger_bounds_are_accepted() -> Patch:
    check = _admission._check_codec

    def lax(request: Any, spec: Any) -> None:
        blocks = dict(request.codec.blocks)
        for name, announced in spec.items():
            asked = blocks.get(name)
            clip = None if asked is None else asked.spec.clip
            if clip is not None and announced.clip is not None:
                clip = min(clip, announced.clip)
                blocks[name] = replace(asked, spec=replace(asked.spec, clip=clip))
        check(replace(request, codec=replace(request.codec, blocks=blocks)), spec)

    return mock.patch.object(_admission, "_check_codec", lax)


def sampled_claims_are_free() -> Patch:
    def lax(account: Any, delta: float, budget: Any = None) -> float:
        kept = copy.copy(account)
        kept.sampled = {}
        return site_epsilon(kept, delta, budget)

    return mock.patch.object(SiteLedger, "_epsilon", staticmethod(lax))


def debits_of_a_tenth() -> Patch:
    debit = SiteLedger.debit

    def small(self: Any, event: Any, **options: Any) -> Any:
        if isinstance(event, PureEvent):
            event = replace(event, eps=event.eps / 10)
        if isinstance(event, GaussianEvent):
            event = replace(event, mu=event.mu / 10)
        return debit(self, event, **options)

    return mock.patch.object(SiteLedger, "debit", small)


def debits_after_rows() -> Patch:
    pay = Site._pay

    def late(self: Site, admitted: Any) -> None:
        self._own_rows(admitted.request)
        pay(self, admitted)

    return mock.patch.object(Site, "_pay", late)


def claims_for_all_methods() -> Patch:
    from skfedcal.federation import site

    return mock.patch.object(site, "claim_name", lambda request: request.run)


def one_row_silences_all() -> Patch:
    def zeros(
        request: Any, part: Any, streams: Any, total: Any, on_failure: Any
    ) -> Any:
        try:
            sent, _ = endpoint._sum_of_sent(request, part, streams)
        except Exception as error:
            on_failure(error, len(part))
            sent = endpoint._sum_of_zeros(request, len(part), streams)
        endpoint._add(total, sent)
        return False

    return mock.patch.object(endpoint, "_add_answers", zeros)


# ---------------------------------------------------------------------- the detectors

Detector = Callable[[], str]


def audited_site(**policy: Any) -> Site:
    """A site of 40 rows and two classes, with a budget of eps 3."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    rows = SiteRows(rng.normal(size=(40, 2)) + np.eye(2)[labels], labels, "logits")
    ledger = SiteLedger(budget=(3.0, 1e-5))
    return Site("a", rows, policy=SitePolicy(**policy), ledger=ledger)


def audit(*names: str, **policy: Any) -> Detector:
    """Attacks of these names on a site with this policy."""

    def detect() -> str:
        attacks = [a for a in server.all_attacks() if a.name in names]
        assert len(attacks) == len(names)
        found = server.audit_site(audited_site(**policy), attacks=attacks)
        return "; ".join(f.learnt for f in found if f.learnt)

    return detect


def noninterference(
    *algorithms: str, n_cases: int = 150, n_seeds: int = 1, first: int = 0
) -> Detector:
    """The property test, with these algorithms; one seed after another."""

    def detect() -> str:
        script = load("noninterference")
        for start in range(first, first + n_seeds):
            found = script.run(n_cases, start, True, algorithms)[1]
            if found:
                return found[0].split("\n")[-1][:100]
        return ""

    return detect


def test(module: str, name: str, *values: Any, **named: Any) -> Detector:
    """A unit test of this folder."""

    def detect() -> str:
        run = getattr(load(module), name)
        try:
            run(*values, **named)
        # pytest.fail is no Exception.
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return f"{type(error).__name__}: {error}"[:100]
        return ""

    return detect


@dataclass(frozen=True)
class Mutant:
    """A fix that is taken out, the item of the list it is for, and what finds it."""

    name: str
    patch: Callable[[], Patch]
    by: str
    detect: Detector


COUNTS = {"methods": ("scores.counts/1",), "noise": "own"}
CENTRAL = {"methods": ("top_bins.counts/1",), "noise": "central", "allow_plain": True}
_CELLS = "test_reports_must_be_on_the_cells_of_the_block"

MUTANTS = (
    Mutant("domain of a report is not checked, failures are raised",
           oracle_domain_and_failures, "property test",
           noninterference("scores.counts/1", n_cases=1000, n_seeds=12)),
    Mutant("domain of a report is not checked, failures are raised",
           oracle_domain_and_failures, "audit: rows in clear",
           audit("rows in clear by a small report domain", **COUNTS)),
    Mutant("domain of a report is not checked", no_oracle_check,
           "unit test " + _CELLS,
           test("test_boundary", _CELLS, {"domain": 100}, "has 256 cells")),
    # Few requests have a class list that is wrong and otherwise fits: of the seeds from
    # 0 on, 25 is the first to find it.
    Mutant("class list is not checked, failures are raised", class_list_and_failures,
           "property test",
           noninterference("scores.counts/1", n_cases=1000, n_seeds=4, first=24)),
    Mutant("class list is not checked, failures are raised", class_list_and_failures,
           "audit: labels", audit("labels by a class list", **COUNTS)),
    Mutant("class list is not checked, failures are raised", class_list_and_failures,
           "audit: labels, masked",
           audit("labels by a class list, masked", **COUNTS)),
    Mutant("class list is not checked", no_class_check,
           "unit test test_classes_must_be_those_of_the_algorithm",
           test("test_boundary", "test_classes_must_be_those_of_the_algorithm",
                ScoreCounts((2,), clip=1.0), [0, 1, 2])),
    Mutant("unfit rows are refused", unfit_rows_are_refused, "property test",
           noninterference("temperature.newton/1")),
    Mutant("unfit rows are refused", unfit_rows_are_refused, "audit: honest request",
           audit("an honest request", **COUNTS)),
    Mutant("unfit rows are refused", unfit_rows_are_refused,
           "audit: honest request, masked",
           audit("an honest request, masked", **COUNTS)),
    Mutant("type of an error is sent after rows are read", error_types_are_sent,
           "property test", noninterference("temperature.newton/1")),
    Mutant("type of an error is sent after rows are read", error_types_are_sent,
           "audit: honest request", audit("an honest request", **COUNTS)),
    Mutant("more rows than announced are refused", row_count_by_width,
           "property test",
           noninterference("top_bins.counts/1", n_cases=400, n_seeds=5)),
    Mutant("more rows than announced are refused", row_count_by_width,
           "audit: numbers of rows and sites",
           audit("numbers of rows and sites", methods=("top_bins",), noise="own")),
    Mutant("number of rows in plain answers", row_count_beside_the_answer,
           "property test",
           noninterference("top_bins.counts/1", n_cases=400, n_seeds=5)),
    Mutant("number of rows in plain answers", row_count_beside_the_answer,
           "audit: row count",
           audit("row count", methods=("top_bins",), noise="own")),
    Mutant("released sums are not checked", sums_are_not_checked,
           "unit test test_a_garbage_site_is_an_error_that_names_the_cause",
           test("test_faulty_sums",
                "test_a_garbage_site_is_an_error_that_names_the_cause",
                "temperature 0", 0)),
    Mutant("bounds above the announced ones are accepted", larger_bounds_are_accepted,
           "audit: bounds", audit("bounds above the announced ones", **CENTRAL)),
    Mutant("claims of sampled rounds are free", sampled_claims_are_free,
           "audit: price", audit("price of an answer", **CENTRAL)),
    Mutant("a tenth is debited", debits_of_a_tenth, "audit: price (claims)",
           audit("price of an answer", **CENTRAL)),
    Mutant("a tenth is debited", debits_of_a_tenth, "audit: price (own noise)",
           audit("price of an answer", **COUNTS)),
    Mutant("rows are read before the debit", debits_after_rows, "audit: price",
           audit("price of an answer", **COUNTS)),
    Mutant("a claim pays for every method of a run", claims_for_all_methods,
           "audit: answers that are not paid",
           audit("answers that are not paid", noise="central", allow_plain=True,
                 methods=("top_bins.counts/1", "temperature.grid/1"))),
    Mutant("one failing row silences all rows", one_row_silences_all,
           "unit test test_a_row_that_cannot_be_computed_costs_no_other_row",
           test("test_noninterference",
                "test_a_row_that_cannot_be_computed_costs_no_other_row",
                "top_bins.counts/1")),
    Mutant("one-bit reports of many cells", bits_of_many_cells, "audit: true eps",
           audit("true eps of answers with own noise", **COUNTS)),
)  # fmt: skip


def main() -> int:
    """Print what finds each mutant."""
    logging.disable(logging.CRITICAL)
    from skfedcal._table import text_table

    rows, missed = [], 0
    words = sys.argv[1:]  # of names, to run some only
    for mutant in MUTANTS:
        if not all(word in f"{mutant.name}: {mutant.by}" for word in words):
            continue
        honest = mutant.detect()
        with mutant.patch():
            found = mutant.detect()
        missed += not found or bool(honest)
        verdict = "caught" if found else "MISSED"
        rows.append([mutant.name, verdict, "FLAGGED" if honest else "pass", mutant.by])
        sys.stderr.write(f"{verdict}: {mutant.name}: {mutant.by}: {found}\n")
    header = ["taken out", "mutant", "as it is", "by"]
    sys.stdout.write(text_table(header, rows, n_left=4) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

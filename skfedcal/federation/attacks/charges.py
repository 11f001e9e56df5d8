"""Attacks on the price of an answer: more is shown than is charged.

- `MeasuredEps`: replies with own noise are told apart better than the charge allows.
- `UnpaidAnswers`, `Debits`: answers that cost nothing, or less than they should.
- `LargerBounds`: answers whose bound is above the one that the claim was made for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from skfedcal.federation.attacks.attack import (
    DELTA,
    Attack,
    Finding,
    Target,
    is_answered,
    one_of_each,
)
from skfedcal.federation.attacks.changes import CHANGES, ORACLES
from skfedcal.federation.attacks.copies import (
    Arrays,
    Letter,
    ask_plain,
    clean_rows,
    letter_of,
    n_entries,
)
from skfedcal.federation.reading import SiteRows
from skfedcal.federation.request_catalogue import Entry, Schema
from skfedcal.privacy.audits.errors import upper_bound
from skfedcal.privacy.ledger import PrivacyLedger


def eps_lower_bound(
    first: Any, second: Any, *, alpha: float, delta: float = 0.0
) -> float:
    """Bound from below the eps of two samples of replies.

    Half of the samples choose a direction and a threshold, the other half count.

    first, second of shape (n, size): Replies in the two worlds.
    alpha: Chance that the bound is above the true eps.
    delta: Of the claim.
    """
    n = min(len(first), len(second)) // 2
    train = np.stack([first[:n], second[:n]]).astype(np.float64)
    means = train.mean(axis=1)
    spread = train.reshape(2 * n, -1).std(axis=0) + 1e-9
    gap = (means[1] - means[0]) / spread**2
    best = np.zeros_like(gap)
    best[np.argmax(np.abs(means[1] - means[0]) / spread)] = 1.0
    choices = []
    for direction in (gap, best):
        a, b = train[0] @ direction, train[1] @ direction
        cuts = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 41)))
        for cut in cuts:
            for low, high in ((0, 1), (1, 0)):
                for side in (1, -1):
                    inside = [side * x >= side * cut for x in (a, b)]
                    odds = (inside[high].mean() + 1 / n) / (inside[low].mean() + 1 / n)
                    choices.append((odds, direction, cut, high, side))
    _, direction, cut, high, side = max(choices, key=lambda choice: choice[0])
    counts = [
        int((side * (sample[n : 2 * n] @ direction) >= side * cut).sum())
        for sample in (first, second)
    ]
    p = 1 - upper_bound(n - counts[high], n, alpha / 2)
    q = upper_bound(counts[1 - high], n, alpha / 2)
    return math.log((p - delta) / q) if p > delta else -math.inf


class MeasuredEps(Attack):
    """Replies with own noise: the eps that they have, and the eps that was charged."""

    name = "true eps of answers with own noise"
    tried = (
        "ask for noise of other laws, sizes and domains than the block needs, repeat, "
        "and compare how well two worlds are told apart with the eps charged"
    )

    def attack(self, target: Target, found: Finding) -> None:
        """Measure every request that the site answers with noise of its own."""
        worst = 0.0
        for letter in self._letters(target):
            seen, _ = ask_plain(target.copies.site(clean_rows(target.schema)), letter)
            if not found.saw([seen], 0.0):
                continue
            bound, charged = self._measured(target, letter, found)
            if bound - charged > worst:
                worst = bound - charged
                found.bits = bound / math.log(2)
                found.eps = charged
                found.learnt = (
                    f"eps at least {bound:.2f} where {charged:.2g} is charged"
                )
                found.examples.append(f"{letter.what}: {found.learnt}")

    def _letters(self, target: Target) -> Iterator[Letter]:
        own = [e for e in target.plain if e.model in ("own", "reports")]
        bent_models = set()
        for entry in one_of_each(own, "algorithm", "model"):
            letter = letter_of(entry)
            yield letter
            for block in letter.noise.get("oracles", {}):
                path = ("randomizer", "oracles", block)
                cheap = letter.changed("eps=0.1", (*path, "eps"), 0.1)
                for kind in ORACLES:
                    yield cheap.changed(f"kind={kind}", (*path, "kind"), kind)
            if entry.model not in bent_models:
                bent_models.add(entry.model)
                for name in ("blocks", "noise", "reading"):
                    yield from CHANGES[name].bend(letter)

    def _measured(
        self, target: Target, letter: Letter, found: Finding
    ) -> tuple[float, float]:
        """Bound and charge of the worst of some pairs of worlds."""
        worst = (-math.inf, 0.0)
        rows = clean_rows(target.schema)
        empty = SiteRows(rows.scores[:0], rows.labels[:0], rows.kind)
        few, many = max(40, target.n_samples // 20), target.n_samples
        for canary in _canaries(target.schema):
            # A look with few samples decides whether the many are worth their time.
            for n, alpha in ((few, 0.05), (many, target.alpha)):
                first = self._samples(target, empty, letter, n)
                second = self._samples(target, canary, letter, n)
                found.count(2 * n, 0, 0.0)
                if first is None or second is None:
                    return worst
                charged = first[1]
                found.count(0, 0, charged)
                if math.isnan(charged):
                    charged = 1.0 if "eps=0.1" not in letter.what else 0.1
                bound = eps_lower_bound(first[0], second[0], alpha=alpha, delta=DELTA)
                if bound <= charged:
                    break
                if n == many:
                    worst = max(worst, (bound, charged))
        return worst

    def _samples(
        self, target: Target, rows: SiteRows, letter: Letter, n: int
    ) -> tuple[Any, float] | None:
        """Answers of a site with these rows, and the charge for one of them."""
        first = target.copies.site(rows)
        if ask_plain(first, letter)[0].refused:
            return None
        charged = target.charged(first)
        # Without a budget, which so many answers would exceed.
        site = target.copies.site(rows, budget=False)
        about = {"round": 0, "position": 0, "request": letter.text}
        replies = []
        for i in range(n):
            site.state = {}
            message = {"run": f"audit {i}", **about}  # a run is answered once
            reply, words = site.handle("answer", message, letter.arrays)
            if "refused" in reply:
                return None
            replies.append(_integers(words))
        return np.array(replies), charged


def _integers(words: Arrays) -> Any:
    """Signed integers of a reply, but not the number of rows."""
    return np.concatenate(
        [
            value.view(value.dtype.str.replace("u", "i")).ravel().astype(np.int64)
            for name, value in sorted(words.items())
            if not name.startswith("/")
        ]
    )


def _canaries(schema: Schema) -> Iterator[SiteRows]:
    """One extreme row of the first and last class: all scores low, or one high."""
    kind: Any = schema.kind
    width = schema.n_columns
    low, high = (0.0, 1.0) if schema.kind == "proba" else (-30.0, 30.0)
    rows = np.full((3, width), low)
    rows[1, 0] = rows[2, -1] = high
    if width == 1:
        rows = rows[:2]
    elif schema.kind == "proba":
        rows[0] = 1 / width
    for label in (schema.classes[0], schema.classes[-1]):
        for row in rows:
            yield SiteRows(row[None], np.array([label]), kind)


class UnpaidAnswers(Attack):
    """Replays, older rounds and second questions: every answer must be paid for."""

    name = "answers that are not paid"
    tried = (
        "send the same round again, an older round, and other questions under a run or "
        "claim that is paid for already"
    )

    def attack(self, target: Target, found: Finding) -> None:
        """Count answers and debits."""
        if not target.copies.has_ledger:
            return
        for entry in one_of_each(target.plain, "algorithm", "model", "unit"):
            if entry.model != "exact":
                self._replays(target, entry, found)
        for secure, entries in ((False, target.plain), (True, target.masked)):
            central = [e for e in entries if e.model == "central"]
            self._second_questions(target, central, secure, found)

    def _replays(self, target: Target, entry: Entry, found: Finding) -> None:
        site, letter = target.copies.site(), letter_of(entry)
        rounds = (("one", 3), ("one", 3), ("one", 2), ("two", 0))
        seen = [ask_plain(site, letter, *which)[0] for which in rounds]
        first, again, older, other = (not look.refused for look in seen)
        charged = target.charged(site)
        found.count(4, first + again + older + other, charged)
        if first and again:
            found.learn("the same round twice", letter.what, charged)
        if first and older:
            found.learn("an older round", letter.what, charged)
        if entry.model in ("own", "reports") and other and not seen[-1].ledger:
            what = "a second answer with own noise, not charged"
            found.learn(what, letter.what, charged)

    def _second_questions(
        self, target: Target, entries: list[Entry], secure: bool, found: Finding
    ) -> None:
        """A claim is for one run of one algorithm: anything else is another release."""
        chosen = one_of_each(entries, "algorithm", "unit")
        for entry in chosen:
            first = letter_of(entry).changed("", ("run",), "one run")
            claim = first.content["claim"]
            for name in {"eps", "mu"} & set(claim):
                small = ("claim", name)
                cheap = first.changed("a small claim", small, claim[name] * 1e-3)
                what = "a larger claim in a run that is paid for"
                pairs = [(entry, cheap), (entry, first)]
                self._paid_once(target, pairs, secure, found, what)
            for other in chosen:
                if other.algorithm == entry.algorithm or other.unit != entry.unit:
                    continue
                # The run and the claim of the first question, word for word.
                second = letter_of(other).changed("", ("run",), "one run")
                second = second.changed("", ("claim",), claim)
                what = "another method under a claim that is paid once"
                pairs = [(entry, first), (other, second)]
                self._paid_once(target, pairs, secure, found, what)

    def _paid_once(
        self,
        target: Target,
        pairs: list[tuple[Entry, Letter]],
        secure: bool,
        found: Finding,
        what: str,
    ) -> None:
        """Ask one question after the other; the second must be paid, or refused."""
        site = target.copies.site()
        answered, debits = 0, 0
        for i, (entry, letter) in enumerate(pairs):
            if secure:
                site.state = {}
            seen = target.ask(site, entry, letter, secure, f"run {i}")
            answered += found.saw(seen, target.charged(site))
            debits = sum(len(look.ledger) for look in seen)
        if answered == 2 and debits == 0:
            by = ", then ".join(letter.what for _, letter in pairs)
            found.learn(what, by, target.charged(site))


class Debits(Attack):
    """The full price, before rows are read, and nothing beyond the budget."""

    name = "price of an answer"
    tried = (
        "compare each debit with the price by the request itself; look whether rows "
        "are read before it; claim more than the budget, in every kind of claim"
    )

    def attack(self, target: Target, found: Finding) -> None:
        """Ask for everything that costs something."""
        if not target.copies.has_ledger:
            return
        for entry, secure in target.variants():
            if entry.model == "exact":
                continue
            self._price(target, entry, secure, found)
            if entry.model == "central" and math.isfinite(target.copies.remaining):
                self._beyond(target, entry, secure, found)

    def _price(
        self, target: Target, entry: Entry, secure: bool, found: Finding
    ) -> None:
        before: list[int] = []

        def load() -> SiteRows:
            before.append(n_entries(site))
            return target.copies.rows

        site = target.copies.site(load)
        start = n_entries(site)
        seen = target.ask(site, entry, letter_of(entry), secure)
        charged, price = target.charged(site), self._expected(target, entry)
        if not found.saw(seen, charged):
            return
        if before and before[0] == start:
            found.learn("rows are read before the debit", entry.name, charged)
        if charged < 0.99 * price:
            what = f"an answer of eps {price:.3g} is charged {charged:.3g}"
            found.learn(what, entry.name, charged)

    def _expected(self, target: Target, entry: Entry) -> float:
        """Price by the request: of its claim, or of its noise over its bounds."""
        letter = letter_of(entry)
        if entry.model == "reports":
            return math.fsum(o["eps"] for o in letter.noise["oracles"].values())
        if entry.model == "own":
            codes = letter.content["codec"]
            return math.fsum(
                codes[name]["spec"]["clip"] / codes[name]["step"] / scale
                for name, scale in letter.noise["scales"].items()
            )
        event = entry.request.claim
        n_rounds = getattr(entry.request.algorithm, "n_rounds", 1)
        if event is None or (entry.model != "central" and n_rounds > 1):
            return 0.0
        ledger = PrivacyLedger()
        ledger.debit(event, label="claim")
        return ledger.spent(target.delta)

    def _beyond(
        self, target: Target, entry: Entry, secure: bool, found: Finding
    ) -> None:
        size = 10 * target.copies.remaining + 10
        slack = {"eps_slack": 0.0, "delta_slack": 0.0}
        rounds = {"sampling_rate": 0.5, "n_rounds": 100}
        for claim in (
            {"kind": "pure", "eps": size},
            {"kind": "gaussian", "mu": size},
            {"kind": "sampled_gaussian", "noise_multiplier": 1 / size, **rounds},
        ):
            letter = letter_of(entry).changed("claim", ("claim",), {**claim, **slack})
            site = target.copies.site()
            seen = target.ask(site, entry, letter, secure)
            found.messages += len(seen)
            if is_answered(seen):
                what = f"a claim ({claim['kind']}) above the budget is answered"
                found.learn(what, entry.name, target.charged(site))


class LargerBounds(Attack):
    """Answers with a larger bound than the algorithm announces.

    What a claim says of the noise is for the announced bound: a row with a larger one
    shows more than is charged.
    """

    name = "bounds above the announced ones"
    tried = (
        "ask for answers whose bound (clip) is above that of the algorithm, for which "
        "the claim was made"
    )

    def attack(self, target: Target, found: Finding) -> None:
        """Look for an answer."""
        for entry, secure in target.variants():
            spec = entry.request.algorithm.spec(entry.request.broadcast)
            for block, announced in spec.items():
                if announced.clip is None:
                    continue
                clips = [announced.clip * factor for factor in (1.001, 2.0, 1e3)]
                where = ("codec", block, "spec", "clip")
                for bent in letter_of(entry).each(where, clips):
                    site = target.copies.site()
                    seen = target.ask(site, entry, bent, secure)
                    if found.saw(seen, target.charged(site)):
                        told = "a row may count more than the claim allows for"
                        found.learn(told, bent.what, target.charged(site))

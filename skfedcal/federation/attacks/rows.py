"""Attacks on the content of rows: what a reply shows that is not agreed.

- `TwoWorlds`: whether anything but the agreed content depends on the rows.
- `OracleDomain`, `LabelsOfRows`, `RowCount`: searches that read values of rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from skfedcal.federation.attacks.attack import (
    Asker,
    Attack,
    Finding,
    Target,
    one_of_each,
)
from skfedcal.federation.attacks.changes import CHANGES, Bend
from skfedcal.federation.attacks.copies import (
    Letter,
    Observation,
    Stage,
    ask_again,
    ask_masked,
    ask_plain,
    letter_of,
    masked_shapes,
    observe,
    unknown_label,
)
from skfedcal.federation.request_catalogue import Entry
from skfedcal.methods.own_rows import kept_rows

_MASKED = ", masked"
# Bends that are tried on every algorithm in masked rounds, too.
_ALWAYS = [CHANGES[name].bend for name in ("nothing", "classes", "broadcast")]


class TwoWorlds(Attack):
    """Send changed requests to two worlds, and compare all but the agreed content.

    name, tried: For the table.
    bend: Changes a valid request in many ways.
    secure: Whether the answer is masked.
    """

    def __init__(self, name: str, tried: str, bend: Bend, secure: bool = False) -> None:
        self.name, self.tried = f"{name}{_MASKED * secure}", tried
        self.bend, self.secure = bend, secure
        self._n_compared = 0

    def attack(self, target: Target, found: Finding) -> None:
        """Ask both worlds everything."""
        for entry in self._entries(target):
            for letter in self.bend(letter_of(entry)):
                if self.secure and self._refused_at_keys(target, letter):
                    found.messages += 1
                    continue
                own, charged, differ = self._compared(target, entry, letter)
                found.saw(own, charged)
                for question in differ:
                    found.learn(question, letter.what, charged)

    def _entries(self, target: Target) -> list[Entry]:
        """One request of each algorithm, trust model and unit."""
        if self.bend is CHANGES["nothing"].bend:
            return target.entries
        names = ["algorithm", "model", "unit", "request.round_index"]
        if self.secure and self.bend not in _ALWAYS:
            # Rows are read by the same code as for plain answers.
            names = ["model", "unit"]
        return one_of_each(target.masked if self.secure else target.plain, *names)

    def _refused_at_keys(self, target: Target, letter: Letter) -> bool:
        """Whether a round does not begin: the rows are not looked at then."""
        message = target.copies.plan().to_message() | {"you": 0, "request": letter.text}
        return bool(observe(target.copies.site(), "keys", message, {})[0].refused)

    def _compared(
        self, target: Target, entry: Entry, letter: Letter
    ) -> tuple[list[Observation], float, list[str]]:
        """What is seen of the own rows, the charge, and worlds in which it differs."""
        site = target.copies.site()
        stages: list[Stage] = []
        if self.secure:
            shapes = masked_shapes(entry)
            own, stages = ask_masked(target.copies, site, letter, shapes)
        else:
            own = [ask_plain(site, letter)[0]]
        self._n_compared += 1
        differ = []
        for i, world in enumerate(target.worlds):
            other = target.copies.site(world.rows)
            if not self.secure:
                same = ask_plain(other, letter)[0] == own[0]
            else:
                # Rows are read in the stage 'masked'. That the other stages do not
                # read them is tried with the worlds in turn.
                turn = self._n_compared % len(target.worlds) == i
                chosen = [
                    k for k, stage in enumerate(stages)
                    if target.thorough or turn or stage.kind == "masked"
                ]  # fmt: skip
                seen = ask_again(other, [stages[k] for k in chosen])
                same = seen == [own[k] for k in chosen]
            if not same:
                differ.append(world.question)
        return own, target.charged(site), differ


def _halving(
    low: int, high: int, refusal: Callable[[int], str], beyond: Callable[[str], bool]
) -> tuple[int, bool]:
    """Least number at which a refusal is not `beyond`, and whether replies differ."""
    texts = set()
    while low < high:
        middle = (low + high) // 2
        text = refusal(middle)
        texts.add(text)
        low, high = (middle + 1, high) if beyond(text) else (low, middle)
    # Always the same reply tells nothing, wherever the search ends.
    return low, len(texts) > 1


class OracleDomain(Attack):
    """Binary search of the cell of a row, by a report with fewer cells than there are.

    A cell beyond the domain is an IndexError, and its name is in the refusal.
    """

    name = "rows in clear by a small report domain"
    tried = (
        "ask for a randomised report of fewer cells than the block has, and read from "
        "the refusal whether the row lies beyond them"
    )
    n_rows = 3
    bits = 12

    def attack(self, target: Target, found: Finding) -> None:
        """Search the cells of some rows of each algorithm that sends reports."""
        for entry in target.plain:
            if entry.model == "reports":
                self._search(target, entry, found)

    def _search(self, target: Target, entry: Entry, found: Finding) -> None:
        asker = Asker(target, entry, secure=False)
        letter = asker.letter
        algorithm: Any = entry.request.algorithm
        if len(getattr(algorithm, "levels", ())) == 1:
            letter = _deepened(letter, self.bits)
            algorithm = replace(algorithm, levels=(self.bits,))
        if len(letter.noise["oracles"]) != 1:
            return
        (block,) = letter.noise["oracles"]
        size = math.prod(letter.content["codec"][block]["spec"]["shape"])
        path = ("randomizer", "oracles", block, "domain")
        right, informative = 0, False
        salts = range(self.n_rows) if hasattr(algorithm, "salt") else range(1)
        for salt in salts:
            salted, asked = letter, algorithm
            if hasattr(algorithm, "salt"):
                salted = letter.changed(f"salt {salt}", ("algorithm", "salt"), salt)
                asked = replace(algorithm, salt=salt)

            def refusal(n: int, salted: Letter = salted) -> str:
                return asker.refusal(salted.changed(f"domain {n}", path, n))

            # The least domain that has the cell is one more than the cell.
            cells, differ = _halving(
                1, size, refusal, lambda text: "IndexError" in text
            )
            right += cells - 1 == _true_cell(asked, entry, target)
            informative |= differ
        told = f"score and label of {len(salts)} chosen rows"
        known = right == len(salts) and informative
        asker.report(found, told if known else "", len(salts) * math.log2(size))


def _deepened(letter: Letter, bits: int) -> Letter:
    """The same report of a finer histogram."""
    content = copy.deepcopy(letter.content)
    (old,) = content["codec"]
    new = f"level_{bits}"
    content["algorithm"]["levels"] = [bits]
    content["codec"] = {new: content["codec"][old]}
    shape = content["codec"][new]["spec"]["shape"]
    shape[-1] = 2**bits
    oracle = {**content["randomizer"]["oracles"][old], "domain": math.prod(shape)}
    content["randomizer"]["oracles"] = {new: oracle}
    return Letter(letter.what, content, letter.arrays)


def _true_cell(algorithm: Any, entry: Entry, target: Target) -> int:
    """What the attack looks for; -2 where the rows do not fit."""
    try:
        (rows,) = algorithm.query(
            entry.request.broadcast, _dataset(entry, target)
        ).values()
        cells = rows.cells if hasattr(rows, "cells") else np.flatnonzero(rows)
        return int(cells[0]) if len(cells) else -2
    except Exception:
        return -2


def _dataset(entry: Entry, target: Target) -> Any:
    """Rows of the site as the algorithm reads them."""
    reading = entry.request.reading
    assert reading is not None
    return reading.dataset(target.copies.rows, target.copies.name)


class LabelsOfRows(Attack):
    """Labels of chosen rows, by a class list that has more classes than tables."""

    name = "labels by a class list"
    tried = (
        "name more classes than the algorithm has tables, with one after the other in "
        "the last place, and read from the refusal whether the row has it"
    )

    def __init__(self, secure: bool = False) -> None:
        self.secure = secure
        self.name = f"{self.name}{_MASKED * secure}"
        self.n_rows = 5 if secure else 20

    def attack(self, target: Target, found: Finding) -> None:
        """Ask for the label of the row that each salt chooses."""
        for entry in target.entries:
            options = entry.request.algorithm
            if (
                entry.model in ("own", "reports")
                and getattr(options, "max_examples", None) == 1
                and hasattr(options, "salt")
                and not found.learnt
            ):
                self._labels(target, entry, found)

    def _labels(self, target: Target, entry: Entry, found: Finding) -> None:
        asker = Asker(target, entry, self.secure)
        labels, classes = target.copies.rows.labels, target.schema.classes
        try:
            clients = _dataset(entry, target)
        except Exception:
            return
        right, told = 0, set()
        for salt in range(self.n_rows):
            salted = asker.letter.changed(f"salt {salt}", ("algorithm", "salt"), salt)
            refused = (c for c in classes[1:] if asker.refusal(_last(salted, c)))
            said = next(refused, classes[0])
            right += bool((labels[kept_rows(clients, 1, salt)] == said).all())
            told.add(said)
        known = right == self.n_rows and len(told) > 1
        text = f"labels of {right} of {self.n_rows} chosen rows" if known else ""
        asker.report(found, text, right * math.log2(len(classes)))


def _last(letter: Letter, label: Any) -> Letter:
    """The same letter with this class in the last place, beyond the tables."""
    path = ("reading", "classes")
    order = [c for c in letter.content["reading"]["classes"] if c != label]
    while len(order) < 2:
        order.append(unknown_label([*order, label]))
    return letter.changed("classes", path, [*order, label])


class RowCount(Attack):
    """The number of rows, by a number of units that is too small for them."""

    name = "row count"
    tried = (
        "announce ever smaller numbers of rows of all sites, and read from the refusal "
        "whether this site alone has more; look for the number beside the answer"
    )

    def __init__(self, secure: bool = False) -> None:
        self.secure = secure
        self.name = f"{self.name}{_MASKED * secure}"

    def attack(self, target: Target, found: Finding) -> None:
        """Search the number of rows by halving."""
        for entry in target.masked if self.secure else target.plain:
            if entry.unit != "example" or found.learnt:
                continue
            if not self.secure and self._sent(target, entry, found):
                continue
            asker = Asker(target, entry, self.secure)

            def refusal(n: int, asker: Asker = asker) -> str:
                return asker.refusal(asker.letter.changed("n", ("n_units",), n))

            n_rows, differ = _halving(1, 1 << 16, refusal, bool)
            known = differ and n_rows == len(target.copies.rows)
            asker.report(found, f"the number of rows: {n_rows}" if known else "", 16.0)

    def _sent(self, target: Target, entry: Entry, found: Finding) -> bool:
        """Whether a plain answer has the number of rows beside its blocks."""
        site = target.copies.site()
        seen, words = ask_plain(site, letter_of(entry))
        charged = target.charged(site)
        found.saw([seen], charged)
        n_rows, blocks = len(target.copies.rows), entry.request.codec.blocks
        for name, value in words.items():
            if name not in blocks and value.size == 1 and value.item() == n_rows:
                told = f"the number of rows: {n_rows}, beside the answer"
                found.learn(told, entry.name, charged, 16.0)
        return bool(found.learnt)

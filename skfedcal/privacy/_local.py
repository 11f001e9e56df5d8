"""Local privacy: every client randomises its own report; the server only debiases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from skfedcal.algorithms._base import BlockSpec, NoiseLaw, Sums
from skfedcal.privacy._codec import BlockCode, Codec, Integers
from skfedcal.privacy._events import PureEvent
from skfedcal.privacy._oracles import Kind, Oracle, choose_oracle
from skfedcal.privacy._paid import PaidSum, Spec, refuse_plan
from skfedcal.privacy._report import PrivacyReport

if TYPE_CHECKING:
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._laplace import PureBudget
    from skfedcal.privacy._randomizers import Randomizer


class LocalSum(PaidSum):
    """Unbiased estimates of counts from randomised reports.

    Parameters
    ----------
    budget : PureBudget
        Eps and how it is divided over rounds and blocks.
    oracle : {'auto', 'grr', 'subset', 'oue', 'olh', 'rr'}
        How clients report; 'auto' takes the one of least variance.
    mode : {'fast', 'faithful'}
        Whether the sum of the reports, or each client's report, is drawn.
    assumptions : tuple of str, default=()
        What must hold, for the report.
    **account : dict
        See `PaidSum`.
    """

    def __init__(
        self,
        budget: PureBudget,
        *,
        oracle: Literal["auto"] | Kind,
        mode: Literal["fast", "faithful"],
        assumptions: tuple[str, ...] = (),
        **account: Any,
    ) -> None:
        super().__init__(**account)
        self.budget, self.mode = budget, mode
        self._oracle = oracle
        self._assumptions = assumptions
        self._multiplier = 0.0

    @property
    def secure(self) -> bool:
        """Whether clients themselves drew what protects them."""
        return self.mode == "faithful" and self._entropy.secure

    @property
    def site_entropy(self) -> Entropy | None:
        """Clients draw nothing in a fast simulation."""
        return None if self.mode == "fast" else super().site_entropy

    def open(
        self,
        run_id: str,
        rounds_done: int = 0,
        *,
        n_participations: int | None = None,
        sampling_rate: float | None = None,
        n_per_round: int | None = None,
    ) -> None:
        budget = self.budget
        refuse_plan(budget.n_rounds, n_participations)
        details = {"eps": budget.eps, "n_rounds": budget.n_rounds}
        self._pay(PureEvent(budget.eps), run_id, rounds_done, details)

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        for name, block in spec.items():
            self._check_block(name, block)
        self._note_bounds(spec)
        # Not clipped but checked by the randomizer: a client that clips a row of two
        # examples would send none of them without a word.
        codec = Codec(
            {name: BlockCode(replace(b, clip=None)) for name, b in spec.items()}
        )
        oracles = self.oracles(codec, round_index)
        spread = oracles[min(oracles)].variance()
        self._multiplier = sqrt(self._n_units * spread)
        return codec

    def oracles(self, codec: Codec, round_index: int) -> dict[str, Oracle]:
        """How each block of a round is reported."""
        specs = {name: code.spec for name, code in codec.blocks.items()}
        budgets = self.budget.of_blocks(specs, round_index)
        out = {}
        for name, block in specs.items():
            if self._oracle == "auto":
                oracle = choose_oracle(budgets[name], block.size)
            else:
                oracle = Oracle(self._oracle, budgets[name], block.size)
            if not oracle.p > oracle.q:
                raise ValueError(
                    f"eps={self.budget.eps:g} leaves nothing of a report on block "
                    f"{name!r}; pass a larger one."
                )
            out[name] = oracle
        return out

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer:
        from skfedcal.privacy._randomizers import LocalReports, OneHotRows

        if self.mode == "fast":
            return OneHotRows()
        return LocalReports(self.oracles(codec, round_index))

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        self._check_paid(round_index)
        if n_clients is None:
            raise RuntimeError("release() needs the number of clients that answered.")
        oracles = self.oracles(codec, round_index)
        self._use_round(codec, round_index)
        values, noise, laws = {}, {}, {}
        for i, (name, code) in enumerate(sorted(codec.blocks.items())):
            oracle = oracles[name]
            reports = total[name][0]
            if self.mode == "fast":
                from skfedcal.privacy._fast import summed_reports

                source = self._entropy.child(round_index, i)
                reports = summed_reports(oracle, reports, n_clients, source)
            p, q = oracle.p, oracle.q
            values[name] = ((reports - n_clients * q) / (p - q)).reshape(
                code.spec.shape
            )
            variance = n_clients * oracle.variance()
            noise[name] = sqrt(variance)
            laws[name] = NoiseLaw(oracle.kind, variance, p, q, n_clients, oracle.domain)
        return Sums(values, noise, laws)

    def report(self) -> PrivacyReport:
        trust = "local: every client randomises its own report and trusts nobody"
        if self.mode == "fast":
            trust += " (simulated: the sum of the reports was drawn, not each report)"
        return PrivacyReport(
            eps=self.budget.eps,
            noise_multiplier=self._multiplier,
            clip=dict(self._clips),
            unit=self.unit,
            adjacency="any two values",
            trust=trust,
            secure=self.secure,
            seeded=self.seeded,
            accountant="pure eps",
            n_rounds=self.budget.n_rounds,
            n_clients=self._n_units,
            assumptions=self._assumptions,
            ledger_ids=self._ledger_ids,
        )

    def describe(self) -> str:
        return f"LocalSum({self.budget}, {self._oracle}, {self.mode})"

    def _check_block(self, name: str, block: BlockSpec) -> None:
        if block.kind != "count" or block.norm != "l1":
            raise ValueError(
                f"{self._label} sends block {name!r} of {block.size} numbers that are "
                "not one count, which LocalDP has no report for. Pass CentralDP or "
                "DistributedDP."
            )
        if block.clip is None or not 1 <= block.clip < 2 or block.groups != 1:
            raise ValueError(
                f"Block {name!r} lets a client send {block.clip} examples, and LocalDP "
                "would have to pay for each. Send one example per client "
                "(max_examples_per_client=1)."
            )
        if self._oracle == "rr" and block.size > 1:
            raise ValueError(
                f"oracle='rr' reports a single bit; block {name!r} has {block.size} "
                "cells. Pass oracle='auto' or 'grr'."
            )
        if self._oracle in ("grr", "subset") and block.size == 1:
            raise ValueError(
                f"Block {name!r} is a single bit; pass oracle='auto' or 'rr'."
            )

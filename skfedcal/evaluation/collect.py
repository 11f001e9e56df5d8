"""Settings of one collection: budget, ledger, runner and seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.backends import masking
from skfedcal.federation.collecting import Collected, Run, collect
from skfedcal.federation.runner import FederatedRunner
from skfedcal.privacy.entropy import Stream, draw_seed
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import (
    LocalDP,
    SecureAggregation,
    check_model,
    make_entropy,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from skfedcal._typing import Seed
    from skfedcal.contract import FederatedAlgorithm
    from skfedcal.federation.backends import Backend, Positions
    from skfedcal.federation.endpoint import PartialSum, Request
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.privacy.models import PrivacyModel


class Statistic:
    """Settings of one collection, checked.

    privacy: None is `SecureAggregation`.
    ledger: Debited before noise is drawn.
    runner: Cohorts and engine.
    random_state: A seed makes private noise a simulation.
    label: For the ledger.
    """

    def __init__(
        self,
        privacy: PrivacyModel | None,
        ledger: PrivacyLedger | None,
        runner: FederatedRunner | None,
        random_state: Seed,
        label: str,
    ) -> None:
        if not isinstance(runner, FederatedRunner | None):
            raise TypeError(
                f"runner is of type {type(runner).__name__}; pass a FederatedRunner."
            )
        if not isinstance(ledger, PrivacyLedger | None):
            raise TypeError(
                f"ledger is of type {type(ledger).__name__}; pass a PrivacyLedger."
            )
        check_model(privacy)
        self.ledger = ledger
        self.runner = FederatedRunner() if runner is None else runner
        self.label = label
        # What must be public about the clients, for the report.
        self.assumptions: list[str] = []
        if self.runner.n_rounds is not None:
            raise ValueError(
                f"FederatedRunner(n_rounds={self.runner.n_rounds!r}): a statistic is "
                "collected once, and more rounds would count clients again. Leave "
                "n_rounds out."
            )
        self.model: PrivacyModel = SecureAggregation() if privacy is None else privacy
        self.model.validate()
        # The caller of this is a function of the user, or one that it calls.
        self.entropy = make_entropy(random_state, private=self.private, stacklevel=4)

    @property
    def private(self) -> bool:
        return self.model.private

    @property
    def unit(self) -> str:
        """Unit of privacy of the model: 'client' or 'example'."""
        return self.model.unit

    @property
    def local(self) -> bool:
        """Whether clients randomise their own reports."""
        return isinstance(self.model, LocalDP)

    def limit(self, max_examples: int | None) -> int | None:
        """Maximum number of rows that a client contributes; None is all of them."""
        if max_examples is not None and (
            isinstance(max_examples, bool)
            or not isinstance(max_examples, (int, np.integer))
            or not 1 <= max_examples < 2**31
        ):
            raise ValueError(
                f"max_examples_per_client={max_examples!r}: pass an integer of at "
                "least 1, or None."
            )
        if self.local and max_examples not in (None, 1):
            raise ValueError(
                f"max_examples_per_client={max_examples}: under LocalDP each further "
                "report of a client would spend eps again. Pass 1 or None."
            )
        if self.private and self.unit == "example":
            if max_examples is not None:
                raise ValueError(
                    f"max_examples_per_client={max_examples}: {self.model!r} protects "
                    "single examples, so no bound per client is needed. Leave it out."
                )
            return None
        if self.private and max_examples is None:
            return 1
        return None if max_examples is None else int(max_examples)

    def public_rows(
        self, clients: FederatedDataset | RemoteDataset, max_examples: int | None
    ) -> float:
        """Public number of rows that count, for choices that may depend on it."""
        if self.unit == "example":
            return float(max(clients.n_rows, 2))
        return float(max(len(clients) * (self.limit(max_examples) or 1), 2))

    def salt(self) -> int:
        """Public salt of the hash by which clients choose among their rows.

        It is the same in every run with a checkpoint, so that a resumed run uses the
        same rows as the first run.
        """
        if self.runner.checkpoint is not None:
            return 0
        return draw_seed(self.entropy, Stream.ROWS)

    def run(
        self,
        algorithm: FederatedAlgorithm[Any],
        clients: FederatedDataset | RemoteDataset,
        *,
        n_parts: int = 1,
        drop_empty: bool = False,
        suffix: str = "",
        period: Run | None = None,
    ) -> Collected:
        """Ask the clients and return the state of the server.

        `n_parts` above 1 partitions the clients at random into that many cohorts, one
        per round. With `drop_empty`, clients without rows are not asked; in a
        simulation their number of rows is known, and remote sites report that they have
        none. `suffix` is for the name of the checkpoint of a second run. With `period`
        the next round of that run is collected, and no more.
        """
        runner = self.runner
        if suffix and runner.checkpoint is not None:
            runner = replace(runner, checkpoint=f"{runner.checkpoint}{suffix}")
        if not isinstance(clients, FederatedDataset):
            clients.check_model(self.model)  # before the number of sites matters
        elif drop_empty:
            runner, clients = _with_rows(runner, clients)
        if n_parts > 1:
            runner = self._partitioned(runner, len(clients), n_parts)
        return collect(
            algorithm,
            clients,
            privacy=self.model,
            runner=runner,
            ledger=self.ledger,
            entropy=self.entropy,
            label=self.label,
            assumptions=tuple(self.assumptions),
            # The same noise for every count of every period.
            split="split" if period is None else "joint",
            on_round=None if period is None else lambda *_: True,
            run=period,
        )

    @staticmethod
    def _partitioned(
        runner: FederatedRunner, n_clients: int, n_parts: int
    ) -> FederatedRunner:
        """Runner that partitions the clients over this number of rounds."""
        if runner.cohort != "full" or runner.cohort_size is not None:
            raise ValueError(
                "LocalDP assigns the clients to the levels of the histogram itself; "
                "leave out cohort and cohort_size of the runner."
            )
        size = ceil(n_clients / n_parts)
        if ceil(n_clients / size) != n_parts:
            raise ValueError(
                f"{n_clients} clients cannot be divided over {n_parts} levels; pass a "
                "smaller height."
            )
        return replace(runner, cohort="permuted", cohort_size=size)


def _with_rows(
    runner: FederatedRunner, clients: FederatedDataset
) -> tuple[FederatedRunner, FederatedDataset]:
    """Clients that have rows, and a runner that asks only these."""
    kept = np.flatnonzero(clients.sizes)
    if len(kept) == len(clients):
        return runner, clients
    if runner.backend is not None and not isinstance(runner.backend, str):
        engine = SomeClients(masking(runner.backend, runner.secure), kept)
        runner = replace(runner, backend=engine)
    return runner, clients.select(kept)


@dataclass(frozen=True, slots=True)
class SomeClients:
    """Engine that reaches some of the clients of another.

    engine: The other engine.
    kept: Positions of the clients among its own.
    """

    engine: Backend
    kept: Positions

    @property
    def secure(self) -> bool:
        """Whether the engine masks what clients send."""
        return bool(getattr(self.engine, "secure", False))

    def ids(self) -> Sequence[Hashable]:
        """Names of the clients that can be asked."""
        names = self.engine.ids()
        return [names[i] for i in self.kept]

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        """Sum of the answers of the clients at these positions of `ids`."""
        return self.engine.total(request, self.kept[cohort])

"""A sum of public numbers: whether sites add up what they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Array, Arrays, BlockSpec, Form, Sums

# Numbers that each client sends; a sum with random words in it is noticed.
_N_VALUES = 16


@dataclass(frozen=True, slots=True)
class SelfTestState:
    """Whether the sum was the expected one."""

    right: bool = False


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Every client sends the same public numbers, whatever its rows are."""

    # A site answers it without its rows, whatever its policy says about noise.
    reads_rows: ClassVar[bool] = False

    n_rounds: int = 1

    def init(self, n_classes: int) -> SelfTestState:
        return SelfTestState()

    def broadcast(self, state: SelfTestState) -> Arrays:
        return {}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"numbers": BlockSpec((_N_VALUES,), kind="count")}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return ({},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        return {"numbers": np.tile(self.numbers, (len(clients), 1))}

    def update(
        self, state: SelfTestState, total: Sums, n_clients: int
    ) -> SelfTestState:
        return SelfTestState(
            bool(np.array_equal(total["numbers"], n_clients * self.numbers))
        )

    def done(self, state: SelfTestState) -> bool:
        return True

    @property
    def numbers(self) -> Array:
        """Numbers of one client: public, distinct, of both halves of a word."""
        return (np.arange(1, _N_VALUES + 1) * 2_654_435_761) % 2**31

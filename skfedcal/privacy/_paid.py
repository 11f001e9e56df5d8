"""What all noisy mechanisms share: pay once, release each round once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from skfedcal.algorithms._base import BlockSpec
from skfedcal.privacy._codec import Codec
from skfedcal.privacy._events import PrivacyEvent

if TYPE_CHECKING:
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._ledger import PrivacyLedger
    from skfedcal.privacy._randomizers import Randomizer

Spec = Mapping[str, BlockSpec]


class PaidSum:
    """Account of one run.

    Parameters
    ----------
    entropy : Entropy
        Where noise comes from.
    ledger : PrivacyLedger
        Debited with the whole run before the first round.
    n_units : int
        Clients (or examples) among which one hides.
    unit : {'client', 'example'}
        What is hidden.
    n_releases : int
        Rounds that may be released; a further one is refused.
    n_values : int
        Numbers that a round may release, as told to the accountant.
    label, population : str
        For the ledger.
    """

    def __init__(
        self,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger,
        n_units: int,
        n_releases: int,
        n_values: int,
        unit: Literal["client", "example"] = "client",
        label: str = "fit",
        population: str = "default",
    ) -> None:
        self.unit = unit
        self._entropy = entropy
        self._ledger = ledger
        self._n_units = n_units
        self._releases_left = n_releases
        self._n_values = n_values
        self._label = label
        self._population = population
        self._receipt: str | None = None
        self.event: PrivacyEvent | None = None
        self._next_round = 0
        self._clips: dict[str, float | None] = {}

    # Clients in a sum that may be opened, and those of them whose noise does not count:
    # no noise is made of shares.
    n_min = max_colluders = 0

    @property
    def secure(self) -> bool:
        """Whether the guarantee is real."""
        return self._entropy.secure

    @property
    def seeded(self) -> bool:
        """Whether any noise comes from a seed, with which anybody can take it off."""
        return not self._entropy.secure

    @property
    def site_entropy(self) -> Entropy | None:
        """Seeded words for clients of a simulation; None: they use their own."""
        return None if self._entropy.secure else self._entropy.child(_SITES)

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        """Give what clients do to their answers; None: nothing."""
        return None

    def _note_bounds(self, spec: Spec) -> None:
        """Keep the bounds of the first round for the report."""
        self._clips = {**{n: b.sensitivity for n, b in spec.items()}, **self._clips}

    def _pay(
        self,
        event: PrivacyEvent,
        run_id: str,
        rounds_done: int,
        details: Mapping[str, Any],
    ) -> None:
        self._releases_left -= rounds_done
        self._next_round = rounds_done
        self.event = event
        self._receipt = self._ledger.debit(
            event,
            label=self._label,
            population=self._population,
            mode="secure" if self.secure else "simulation",
            run_id=run_id,
            details={"unit": self.unit, "n_units": self._n_units, **details},
        )

    def _check_paid(self, round_index: int) -> None:
        if self._receipt is None:
            raise RuntimeError("release() before open(): nothing has been paid.")
        if round_index < self._next_round:
            raise RuntimeError(f"Round {round_index} has been released already.")

    def _use_round(self, codec: Codec, round_index: int) -> None:
        """Count the round as released, before its noise is drawn."""
        size = sum(code.spec.size for code in codec.blocks.values())
        if self._releases_left < 1 or size > self._n_values:
            raise RuntimeError(
                f"Round {round_index} releases {size} numbers; paid for are "
                f"{self._releases_left} more rounds of {self._n_values} numbers."
            )
        self._releases_left -= 1
        self._next_round = round_index + 1

    @property
    def _ledger_ids(self) -> tuple[str, ...]:
        return () if self._receipt is None else (self._receipt,)


# Clients of a simulation read other streams than the server, whose streams are named
# by a round and a block.
_SITES = 1 << 32


def refuse_plan(planned: int, n_participations: int | None) -> None:
    """Refuse a run in which a client takes part more often than was paid for."""
    if (n_participations or 0) > planned:
        raise RuntimeError(
            f"The noise was planned for {planned} rounds; the run has up to "
            f"{n_participations} per client."
        )

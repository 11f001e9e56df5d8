"""SCAFFOLD: corrections of the drift between clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skfedcal._params import FrozenParams

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scaffold(FrozenParams):
    """Control variates of clients and server (SCAFFOLD, option II).

    A client adds ``c - c_k`` to each gradient and then sets
    ``c_k <- c_k - c + (w - w_k) / (S_k lr')`` after its S_k steps, where
    ``lr' = lr / (1 - momentum)`` is the length that a step has in the end. The server
    adds the sum of the changes of all c_k, divided by the number of all clients, to c.
    In the first round all of them are 0, and it is plain federated averaging.

    A client keeps c_k from round to round. It is a second message of the size of the
    model, so that it is refused under privacy.

    References
    ----------
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, Algorithm 1.

    Examples
    --------
    >>> from skfedcal.training import FedAvgClassifier, Scaffold
    >>> FedAvgClassifier(correction=Scaffold()).correction
    Scaffold()
    """

    def shift(self, control: Tensor, own: Tensor) -> Tensor:
        """Term of each client's gradients."""
        return control - own

    def renewed(
        self,
        control: Tensor,
        own: Tensor,
        moved: Tensor,
        n_steps: Tensor,
        step_length: float,
    ) -> Tensor:
        """Control variates of clients that moved by ``w_k - w`` in `n_steps`."""
        return own - control - moved / (n_steps[:, None] * step_length)

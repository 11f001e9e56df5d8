"""Errors and warnings raised by skfedcal."""

__all__ = [
    "BudgetExceededError",
    "CalibrationWarning",
    "CheckpointError",
    "CheckpointWarning",
    "FaultyClientWarning",
    "LedgerCorruptedError",
    "LogitsWarning",
    "NotEnoughClientsError",
    "PrivacyWarning",
    "SecureAggregationError",
    "SimulatedPrivacyWarning",
    "SiteRefusalError",
]


class BudgetExceededError(RuntimeError):
    """A debit would exceed the budget of the ledger; nothing was released."""


class LedgerCorruptedError(RuntimeError):
    """A ledger file was edited or damaged; it refuses further debits."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used for this fit."""


class NotEnoughClientsError(RuntimeError):
    """Fewer clients answered than the runner requires."""


class SecureAggregationError(RuntimeError):
    """A client or the server refuses to go on with a masked round."""


class SiteRefusalError(RuntimeError):
    """A site does not answer a request; the text goes to the server."""


class FaultyClientWarning(UserWarning):
    """Clients were left out of a sum: no answer, a wrong one, or a refusal."""


class PrivacyWarning(UserWarning):
    """The call is valid but the privacy guarantee is weaker than it looks."""


class SimulatedPrivacyWarning(PrivacyWarning):
    """Noise came from a seed: the numbers are those of the mechanism, not a secret."""


class CheckpointWarning(UserWarning):
    """A result comes from a checkpoint, not from the clients."""


class LogitsWarning(UserWarning):
    """The input is accepted as logits but looks like something else."""


class CalibrationWarning(UserWarning):
    """A calibration map was fitted but should be looked at before use."""

"""What is public about a fit before any client is asked."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class FitSetting:
    """What a method may know before it is run; all of it is public."""

    n_classes: int
    private: bool
    unit: str
    weighted: bool
    n_clients: int = 1
    # L2 bound over noise if the whole budget went into one release.
    strength: float = inf
    # Rounds that the runner asks for.
    n_rounds: int | None = None
    # Clients, or rows, among which one hides.
    n_units: int = 1


def setting_of(model, clients, runner):
    """What is public about a fit before it is run."""
    n_units = clients.n_rows if model.unit == "example" else len(clients)
    return FitSetting(
        clients.n_classes,
        model.private,
        model.unit,
        clients.weights is not None,
        len(clients),
        model.strength(n_units),
        runner.n_rounds,
        n_units,
    )


def check_weights(weights, model):
    """Raise where weights of rows cannot be used."""
    if weights is None:
        return
    if model.private:
        raise ValueError(
            "sample_weight cannot be used with privacy: a weighted client could send "
            "more than its bound. Leave it out, or fit with eps=None."
        )
    if not weights.any():
        raise ValueError("sample_weight is zero for every row; nothing is left to fit.")

"""Sentences below the table of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skfedcal.experiments.comparison._result import Comparison

# Below this many clients one client is a large part of every sum.
FEW_CLIENTS = 50

# An error this many deviations above its floor is told from it.
N_DEVIATIONS = 2.0


def notes_of(comparison: Comparison) -> list[str]:
    """What to know about the rows, the columns and the privacy."""
    return [
        data_note(comparison),
        "base: logits as they are. central: "
        f"{comparison.settings['oracle']} on all rows in one place, without noise. "
        "floor: cwECE of a perfect model on as many rows. gap closed: share of the way "
        "from base to central, in cwECE. bytes and client seconds: of one client that "
        "takes part in all rounds.",
        *_star_note(comparison),
        *unchanged_input_notes(comparison),
        *said(comparison),
        *(f"Left out: {text}" for text in comparison.refused),
        privacy_note(comparison),
    ]


def data_note(comparison: Comparison) -> str:
    """Say whose rows they are."""
    settings, first = comparison.settings, comparison.runs[0]
    clients = spread_text(comparison, "n_clients")
    how = ""
    if settings["clients dealt"]:
        how = (
            " The rows have no clients of their own: they were assigned to clients "
            "with label skew (Dirichlet, beta = "
            f"{_varied(comparison, 'beta', settings['beta'])})."
        )
    test = "given" if settings["test given"] else "held out, a new split for each seed"
    seeds = len(settings["seeds"])
    return (
        f"Calibrated on {spread_text(comparison, 'n_rows')} rows of {clients} clients, "
        f"measured on {spread_text(comparison, 'n_test')} rows ({test}); "
        f"{settings['n_classes']} classes, base accuracy "
        f"{100 * first['accuracy']:.1f} %, {seeds} seed{'s' * (seeds != 1)}.{how}"
    )


def privacy_note(comparison: Comparison) -> str:
    """Say what eps protects, and that this is a simulation."""
    private = [run for run in comparison.runs if run.get("eps spent") is not None]
    if not private:
        return "No noise was added: the sums are exact, and nothing is private."
    deltas = sorted({run["delta"] for run in private})
    units = sorted({run["unit"] for run in private})
    return (
        f"eps: budget of one whole {' or '.join(units)} for one fit, delta = "
        f"{', '.join(f'{delta:g}' for delta in deltas)}. "
        + (
            "All noise is seeded, so this is a simulation without a privacy guarantee."
            if all(run["simulated"] for run in private)
            else "The noise came from the operating system."
        )
    )


def unchanged_input_notes(comparison: Comparison) -> Iterator[str]:
    """Name private fits that were not distinguishable from noise and were not used."""
    counts: dict[str, dict[str, list[bool]]] = {}
    for run in comparison.runs:
        here = counts.setdefault(run["eps"], {})
        here.setdefault(run["method"], []).append(not run["used"])
    found = []
    for eps, methods in counts.items():
        kept = [
            f"{name} {sum(flags)} of {len(flags)}"
            for name, flags in methods.items()
            if any(flags)
        ]
        if kept:
            found.append(f"at eps {eps}: {', '.join(kept)}")
    if found:
        yield (
            "Input left unchanged, because the calibration was not distinguishable "
            f"from noise, in runs {'; '.join(found)}."
        )


def said(comparison: Comparison) -> list[str]:
    """Warnings of the fits, each once."""
    texts = {
        f"{run['method']}: {text}": text
        for run in comparison.runs
        for text in run.get("warnings", ())
    }
    found = []
    for text in dict.fromkeys(texts.values()):
        names = [name.partition(":")[0] for name, own in texts.items() if own == text]
        found.append(f"{', '.join(names)}: {text}")
    return found


def spread_text(comparison: Comparison, name: str) -> str:
    """Return a number that all runs share, or its range."""
    found = sorted({run[name] for run in comparison.runs})
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _star_note(comparison: Comparison) -> Iterator[str]:
    if any(comparison.table.stars.values()):
        yield "*: accuracy drops by more than 1 % of the test rows."


def _varied(comparison: Comparison, name: str, value: Any) -> str:
    values = comparison.settings["vary"].get(name, [value])
    return ", ".join(f"{entry:g}" for entry in values)

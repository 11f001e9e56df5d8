"""Order of the gallery: from the first fit to the rarer things."""

from pathlib import Path

FIRST = (
    "plot_first_steps.py",
    "plot_compare.py",
    "plot_which_method.py",
    "plot_eps.py",
    "plot_client_differences.py",
    "plot_label_skew.py",
    "plot_digits_pipeline.py",
    "plot_federated_training.py",
    "plot_mnist_writers.py",
    "plot_domain_shift.py",
    "plot_hospital_evaluation.py",
    "plot_monitor.py",
    "plot_audit.py",
    "plot_your_own_method.py",
)


def place(path):
    """Return the key of an example; new ones come last, by name."""
    name = Path(path).name
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)

"""The one place of this folder that knows where things are inside the package.

Everything else uses public names. After modules are moved or renamed, only the imports
and attribute names below need to follow; recorded values must not change.
"""

import argparse
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

from skfedcal import FederatedDataset
from skfedcal.federation import InProcess, TreeBackend, collecting


def algorithm_names():
    """Names of all algorithms that a request may carry."""
    from skfedcal.methods.registry import BUILT_IN

    own = [a for method in BUILT_IN for a in method.own_algorithms]
    return sorted(algorithm.load().__name__ for algorithm in own)


def family_names():
    """Names of all families of maps that an algorithm may carry."""
    from skfedcal.methods.registry import FAMILIES, load_object

    return sorted(load_object(path).__name__ for path in FAMILIES.values())


def names_of(algorithm):
    """Name of an algorithm, and of its family where it has one."""
    family = getattr(algorithm, "family", None)
    name = type(algorithm).__name__
    return [name] if family is None else [name, type(family).__name__]


def write_wire(request):
    """Text and arrays of a request."""
    from skfedcal.federation.wire import write_request

    return write_request(request)


def read_wire(text, arrays):
    """Request from its text and arrays."""
    from skfedcal.federation.wire import read_request

    return read_request(text, arrays)


def wire_error():
    """Exception by which a request is refused."""
    from skfedcal.federation.plain import WireError

    return WireError


def wire_format():
    """Format in which requests are written now."""
    from skfedcal.federation.wire import FORMAT

    return FORMAT


def site_from_toml(path):
    """Site that a configuration file describes."""
    from skfedcal.federation.site import site_from_config

    return site_from_config({"site-config": str(path)})


def site_ledger(path, budget):
    """Ledger of a site, with a budget."""
    from skfedcal.privacy.site_ledger import SiteLedger

    return SiteLedger(str(path), budget=budget)


def cli_parsers():
    """Argument parser of the command line by command ('' is the program itself)."""
    from skfedcal.cli._main import build_parser

    found = {}

    def walk(parser, name):
        found[name] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, child in action.choices.items():
                    walk(child, f"{name} {word}".strip())

    walk(build_parser(), "")
    return found


def lattice(request):
    """Step of the integers of each block; None where a count or a real is exact."""
    return {name: code.step for name, code in request.codec.blocks.items()}


def is_real(request, name):
    """Whether a block is sent exactly as a real number, in fixed point."""
    return request.codec.blocks[name].n_limbs > 1


def run_algorithm(algorithm, dataset, privacy, runner, seed):
    """Run an algorithm without an estimator around it."""
    from skfedcal.privacy import PrivacyLedger, SecureAggregation
    from skfedcal.privacy.entropy import SeededEntropy

    model = SecureAggregation() if privacy is None else privacy
    mechanism = model.mechanism(
        runner.release_plan(algorithm, dataset, model.unit),
        entropy=SeededEntropy(seed),
        ledger=PrivacyLedger(),
        label="frozen",
    )
    return runner.run(algorithm, dataset, mechanism, SeededEntropy(seed + 1))


@dataclass
class Observed:
    """Everything that a call made public: runs in order, with their requests."""

    algorithms: list = field(default_factory=list)
    histories: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    error: Exception | None = None
    # Whether counts of randomised reports are released, as unbiased estimates.
    estimates: bool = False


@contextmanager
def observe(tree=False):
    """Note runs of all estimators, and requests to clients in this process.

    With `tree`, clients in this process are summed by aggregators of two clients.
    """
    seen = Observed()
    run, total = collecting.run_rounds, InProcess.total

    def noted_run(runner, algorithm, clients, *args, **kwargs):
        if tree and isinstance(clients, FederatedDataset):
            runner = runner.set_params(backend=TreeBackend.over(clients, 2))
        state, history = run(runner, algorithm, clients, *args, **kwargs)
        seen.algorithms.append(algorithm)
        seen.histories.append(history)
        return state, history

    def noted_total(self, request, cohort):
        answer = total(self, request, cohort)
        seen.requests.append(replace(request))
        return answer

    with (
        mock.patch.object(collecting, "run_rounds", noted_run),
        mock.patch.object(InProcess, "total", noted_total),
    ):
        yield seen

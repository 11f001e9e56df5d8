"""Policy of a site, and the checks of a request before any rows are used.

Conditions under which a site answers, and the cost of an answer. A site draws its own
noise, so that it knows what it gives away under `DistributedDP`, `LocalDP` and
`SourceDP` from the scales and bounds in the request. Under `CentralDP` the server draws
the noise: the site relies on its claim, and its policy may demand more. Needs numpy
only.

A server may say anything. `admit` reads a message once, into one object, and checks it
against what the site derives by itself: shapes, bounds, the domain of reports and the
cost follow from the algorithm and its public parameters. Only an `Admitted` request
reaches code that touches rows. Everything here, texts of refusals included, depends on
the message and on the policy of the site, never on its rows. Needs numpy only.

Rounds that were answered are remembered, and are not answered again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from hashlib import blake2b
from math import fsum, inf, prod, sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from skfedcal._params import as_number, check_choice, check_integer, check_number
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec, check_broadcast
from skfedcal.exceptions import SiteRefusalError
from skfedcal.federation.endpoint import Request, WordPlan, request_words, respond
from skfedcal.federation.wire import algorithm_names, read_request, terms_hash
from skfedcal.methods import registry
from skfedcal.privacy.codec import Codec
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.events import GaussianEvent, PrivacyEvent, PureEvent
from skfedcal.privacy.polya import polya_error
from skfedcal.privacy.randomizers import (
    GaussianShares,
    LaplaceShares,
    LocalReports,
    OneHotRows,
    Oracle,
    PolyaShares,
)
from skfedcal.privacy.samplers import (
    GAUSSIAN_BASE_SIGMA,
    lattice_slack,
    table_slack,
    tv_slack,
)

if TYPE_CHECKING:
    from skfedcal.federation.mask_plan import MaskPlan

Noise = Literal["none", "central", "shared", "own"]
NOISES: tuple[Noise, ...] = ("none", "central", "shared", "own")


class Cost(NamedTuple):
    """Who draws the noise, what the site pays, and noise over bound in the answer.

    `noise` is 0 where the site does not draw it.
    """

    kind: Noise
    event: PrivacyEvent | None
    noise: float


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """Conditions under which a site answers.

    Parameters
    ----------
    min_clients : int, default=3
        Least number of clients of a masked sum. Where each client masks with a part of
        the others (above 50 clients) a site without a roster relies on the server for
        it.
    methods : tuple of str, default=None
        Methods that are answered, by their words or the names of their estimators,
        such as 'temperature' or 'FedVectorCalibrator'; or single algorithms of them,
        such as 'temperature.posterior/2'. None is all that the site knows, except
        'class_scores.table/1' (isotonic fits of FedOneVsRestCalibrator): its exact sum
        lists the scores of single rows with their labels, so that it must be named
        itself. Exact counts in many narrow buckets ('score_histogram') show single
        scores as well: only `noise` prevents that.
    classes : tuple of str, default=None
        Labels of the site, as texts: a request must name these and no others. None
        takes any; rows whose label a request does not name then send zeros, and exact
        sums with and without a label reveal how many rows have it.
    noise : {'none', 'central', 'shared', 'own'}, default='none'
        Least noise that must protect the answer. 'none': exact sums. 'central': the
        server claims to add noise. 'shared': clients add noise shares before the sum.
        'own': the answer of the site is private by itself.
    min_noise : float, default=0.0
        Least noise that the site draws, over the bound of a unit: ``1 / eps`` of an
        answer with Laplace noise or a randomised report, ``1 / mu`` of one with
        Gaussian noise. A value above 0 excludes noise that others draw.
    unit : {'example', 'client'}, default='example'
        Smallest unit of privacy that is accepted: one row, or all rows of the site
        together, as where a client is one person.
    hold_back : bool, default=False
        Whether fits must leave out the fifth of the rows by which their result is
        compared with the input.
    allow_plain : bool, default=False
        Whether answers that are not private by themselves may be sent without a mask.
    allow_seeded_noise : bool, default=False
        Whether the server may name the seed of the site's noise: for simulations.
    max_colluders : int, default=0
        Clients of a sum that may collude with the server: the site does not count their
        noise shares, and requires that they cannot open masks (above 50 clients, if it
        has a roster; otherwise it relies on the server for that).
    min_neighbours : int, default=14
        Least number of neighbours of the site, where not all clients mask with each
        other.
    max_values : int, default=10_000_000
        Most numbers of an answer.
    allow_training : bool, default=False
        Whether the site trains a module on its rows, for `FedAvgClassifier`. Needs
        torch at the site.

    Examples
    --------
    >>> from skfedcal.federation import SitePolicy
    >>> SitePolicy.from_config({"min-clients": 5, "noise": "shared"}).min_clients
    5
    """

    min_clients: int = 3
    methods: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    noise: Noise = "none"
    min_noise: float = 0.0
    unit: Literal["example", "client"] = "example"
    hold_back: bool = False
    allow_plain: bool = False
    allow_seeded_noise: bool = False
    max_colluders: int = 0
    min_neighbours: int = 14
    max_values: int = 10_000_000
    allow_training: bool = False

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, NOISES)
        check_choice("unit", self.unit, ("example", "client"))
        for name, least in (
            ("min_clients", 1),
            ("max_colluders", 0),
            ("max_values", 1),
            ("min_neighbours", 2),
        ):
            check_integer(name, getattr(self, name), least)
        check_number("min_noise", self.min_noise, 0, inf, "left")
        self._check_methods()

    def _check_methods(self) -> None:
        if self.methods is None:
            return
        if not isinstance(self.methods, tuple) or not all(
            isinstance(word, str) for word in self.methods
        ):
            raise ValueError(
                f"methods={self.methods!r}: pass a tuple of words such as "
                "'temperature', or None."
            )
        for word in self.methods:
            registry.allowed_by(word)  # an unknown word is an error
            new = registry.replacement_of(word)
            if new is not None:
                warnings.warn(
                    f"methods={word!r} is the name of a class, which will not be read "
                    f"any more in 0.2; write {new!r} instead.",
                    FutureWarning,
                    stacklevel=4,
                )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SitePolicy:
        """Policy from a flat configuration, such as that of a node.

        Parameters
        ----------
        config : mapping
            Parameters by name, with '-' or '_'; `methods` and `classes` as a list or a
            text with commas.

        Raises
        ------
        ValueError
            For an unknown condition: a misspelt one would not be enforced.
        """
        known = {f.name: type(f.default) for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            name = key.replace("-", "_")
            if name not in known:
                raise ValueError(
                    f"{key!r} is not a condition of SitePolicy; known are "
                    f"{', '.join(k.replace('_', '-') for k in known)}."
                )
            if name in ("methods", "classes"):
                value = _texts(key, value)
            elif known[name] is float and type(value) is int:
                value = as_number(key, value)
            elif type(value) is not known[name]:
                raise ValueError(
                    f"{key}={value!r}: expected a value of type {known[name].__name__}."
                )
            values[name] = value
        return cls(**values)

    def check(self, request: Request, *, masked: bool) -> Cost:
        """Refuse a request that violates a condition; return the cost of an answer.

        Looks at everything but the broadcast.

        Raises
        ------
        SiteRefusalError
            Naming the condition.
        """
        if not getattr(request.algorithm, "reads_rows", True):
            # A sum of public numbers, which is masked all the same.
            return Cost("none", None, inf)
        if self.methods is not None:
            self._check_method(*algorithm_names(request.algorithm))
        self._check_listing(request.algorithm)
        if _is_marked(request.algorithm, "trains") and not self.allow_training:
            raise SiteRefusalError(
                "its policy (allow_training) does not allow to train a module"
            )
        self._check_classes(request)
        self._check_held_back(request)
        n_values = sum(code.spec.size for code in request.codec.blocks.values())
        if n_values > self.max_values:
            raise SiteRefusalError(
                f"its policy (max_values) allows {self.max_values} numbers, the "
                f"request asks for {n_values}"
            )
        if request.entropy is not None and not self.allow_seeded_noise:
            raise SiteRefusalError(
                "its policy (allow_seeded_noise) does not allow noise from a seed of "
                "the server"
            )
        n_min = max(request.n_min, self.min_clients)
        cost = answer_cost(request, n_min - self.max_colluders)
        self._check_noise(cost)
        if self.unit == "client" and request.unit != "client" and cost.kind != "none":
            raise SiteRefusalError(
                "its policy (unit) requires noise that protects all its rows together, "
                "the request protects single rows"
            )
        if not masked and cost.kind != "own" and not self.allow_plain:
            raise SiteRefusalError(
                "its policy (allow_plain) does not allow an answer without a mask"
            )
        if not masked and cost.kind == "shared" and not self.allow_seeded_noise:
            # Alone with its share it would cost far more than is counted here.
            raise SiteRefusalError(
                "a share of the noise protects only inside a masked sum; a plain "
                "answer is for simulations (allow_seeded_noise)"
            )
        return cost

    def check_masks(self, plan: MaskPlan) -> None:
        """Refuse terms of a masked round that do not meet the policy.

        Raises
        ------
        SiteRefusalError
            Naming the condition.
        """
        from skfedcal.federation.mask_plan import COMPLETE

        if not plan.complete and plan.n_clients <= COMPLETE:
            raise SiteRefusalError(
                f"a round of up to {COMPLETE} clients must mask each with all others; "
                f"this one has {plan.n_clients} clients and {plan.degree} neighbours"
            )
        if not plan.complete and plan.degree < self.min_neighbours:
            raise SiteRefusalError(
                f"its policy (min_neighbours) requires masks with "
                f"{self.min_neighbours} others, the round has {plan.degree}"
            )
        if plan.complete and 2 * plan.threshold <= plan.n_clients + self.max_colluders:
            raise SiteRefusalError(
                f"its policy (max_colluders) allows for {self.max_colluders} "
                f"colluders, which a threshold of {plan.threshold} of "
                f"{plan.n_clients} does not tolerate"
            )

    def _check_method(self, algorithm: str, family: str) -> None:
        allowed = {
            pair for word in self.methods or () for pair in registry.allowed_by(word)
        }
        if not {(algorithm, family), (algorithm, "")} & allowed:
            words = " or ".join(registry.method_words(algorithm, family))
            raise SiteRefusalError(
                f"its policy (methods) does not allow {words} ({algorithm}); allowed "
                f"are {', '.join(self.methods or ())}"
            )

    def _check_listing(self, algorithm: object) -> None:
        """Refuse sums that list single rows, unless the policy names the algorithm."""
        if not _is_marked(algorithm, "lists_rows"):
            return
        name = algorithm_names(algorithm)[0]
        alone = frozenset([(name, "")])
        if not any(registry.allowed_by(word) == alone for word in self.methods or ()):
            raise SiteRefusalError(
                f"its policy (methods) does not name {name} itself, whose exact sum "
                "lists the scores of single rows with their labels"
            )

    def _check_classes(self, request: Request) -> None:
        if self.classes is None or request.reading is None:
            return
        if {str(label) for label in request.reading.classes} != set(self.classes):
            raise SiteRefusalError(
                f"its policy (classes) has {len(self.classes)} labels, the request "
                "does not name the same"
            )

    def _check_held_back(self, request: Request) -> None:
        """Refuse a fit to rows that are held back from fits."""
        if request.reading is None or not registry.is_fit(
            algorithm_names(request.algorithm)[0]
        ):
            return
        part = request.reading.part
        if part == "held":
            raise SiteRefusalError(
                "rows that are held back are for comparisons, not for a fit"
            )
        # An algorithm that holds rows back by itself counts those that fit the request,
        # which the server can move by other classes: these are other rows.
        if self.hold_back and part != "fit":
            raise SiteRefusalError(
                "its policy (hold_back) requires fits without the rows that are held "
                "back for comparisons, as fit_sites and sites.part('fit') ask for"
            )

    def _check_noise(self, cost: Cost) -> None:
        if NOISES.index(cost.kind) < NOISES.index(self.noise):
            raise SiteRefusalError(
                f"its policy (noise) requires {self.noise!r}, the request has "
                f"{cost.kind!r}"
            )
        if cost.noise < self.min_noise:
            raise SiteRefusalError(
                f"its policy (min_noise) requires noise of {self.min_noise:g} times "
                f"the bound, the request has {cost.noise:.4g}"
            )


def _is_marked(algorithm: Any, flag: str) -> bool:
    """Whether an algorithm has a flag, or the one that it runs on fewer rows."""
    inner = getattr(algorithm, "inner", algorithm)
    return any(getattr(one, flag, False) for one in (algorithm, inner))


def _texts(key: str, value: Any) -> tuple[str, ...]:
    """Entries of a list, or of a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{key}={value!r}: expected a list, or a text with commas.")
    return tuple(text for text in (str(part).strip() for part in parts) if text)


def answer_cost(request: Request, n_honest: int) -> Cost:
    """Privacy cost of one answer for the site.

    request: The question, without its broadcast.
    n_honest: Clients of the sum, this site included, whose shares of noise stay secret.
    Raises SiteRefusalError: If noise and bounds do not fit together.
    """
    codec, randomizer = request.codec, request.randomizer
    n_values = sum(code.spec.size for code in codec.blocks.values())
    if isinstance(randomizer, GaussianShares):
        if n_honest < 1:
            raise SiteRefusalError("no honest client is left to add noise")
        square = fsum(
            code.limit * code.spec.groups for code in _bounded(codec, "l2").values()
        )
        mu = sqrt(square / n_honest) / GAUSSIAN_BASE_SIGMA
        slack = lattice_slack(n_values, n_honest)
        event = GaussianEvent(mu, eps_slack=slack.eps, delta_slack=slack.delta)
        return Cost("shared", event, 1 / mu if mu else inf)
    if isinstance(randomizer, PolyaShares):
        if randomizer.n_shares < 1:
            raise SiteRefusalError("the request has no noise shares")
        if n_honest < randomizer.n_shares:
            raise SiteRefusalError(
                f"the noise needs {randomizer.n_shares} shares, but it counts only "
                f"those of {max(n_honest, 0)} clients"
            )
        error = tv_slack(polya_error(n_values, randomizer.n_shares))
        return _pure("shared", _laplace_eps(codec, randomizer.scales), error)
    if isinstance(randomizer, LaplaceShares):
        eps = _laplace_eps(codec, randomizer.scales)
        return _pure("own", eps, table_slack(n_values))
    if isinstance(randomizer, LocalReports):
        if set(randomizer.oracles) != set(codec.blocks):
            raise SiteRefusalError("a block has no report")
        if not all(o.eps > 0 for o in randomizer.oracles.values()):
            # It would be taken off what the other blocks cost.
            raise SiteRefusalError("the eps of a report is not positive")
        return _pure("own", fsum(o.eps for o in randomizer.oracles.values()))
    return Cost("none" if request.claim is None else "central", request.claim, 0.0)


def neighbouring_relation(request: Request) -> str:
    """Relation for which `answer_cost` states the cost, in the words of `privacy_`.

    A report hides any value of a unit behind any other; all other costs follow from the
    bound of a unit, which sends zeros in the neighbouring data set.
    """
    reports = isinstance(request.randomizer, (LocalReports, OneHotRows))
    return "any two values" if reports else "zero-out"


def _pure(kind: Noise, eps: float, slack: float = 0.0) -> Cost:
    return Cost(kind, PureEvent(eps, delta_slack=slack), 1 / eps if eps else inf)


def _laplace_eps(codec: Codec, scales: Mapping[str, float]) -> float:
    """Largest log ratio of all blocks together, from the integers that can be sent."""
    blocks = _bounded(codec, "l1")
    if set(scales) != set(blocks) or min(scales.values()) <= 0:
        raise SiteRefusalError("a block has no noise")
    return fsum(
        code.limit * code.spec.groups / scales[name] for name, code in blocks.items()
    )


def _bounded(codec: Codec, norm: str) -> dict[str, Any]:
    for name, code in codec.blocks.items():
        if code.step is None or code.spec.clip is None or code.spec.norm != norm:
            raise SiteRefusalError(
                f"block {name!r} has no {norm.upper()} bound, which its noise needs"
            )
    return dict(codec.blocks)


Message = dict[str, Any]

# Longest name of a run, and most arrays of a broadcast.
_MAX_NAME, _MAX_ARRAYS = 200, 32
# Most classes, and most clients of a sum.
_MAX_CLASSES, _MAX_CLIENTS = 1 << 20, 1 << 31
# Noise scales, in lattice steps, whose tables take little time and memory.
_SCALES = (2.0**-20, 2.0**45)
# Most numbers of an answer of which every row has its own.
_MAX_ROW_VALUES = 1 << 20
# Most rounds of one claim.
_MAX_ROUNDS = 100_000
# Beyond this eps a report is the value itself.
_MAX_REPORT_EPS = 700.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that a site has checked and is ready to answer.

    request: What is asked, with its broadcast.
    cost: Privacy cost of the answer for the site.
    words: How the answer is written: shapes and lengths depend on the request only.
    terms: Hash of what the request has in common with those of all rounds of its run.
    run: Run of the message.
    round_index: Number of the message in its run.
    position: Place of a simulated client among all of them.
    """

    request: Request
    cost: Cost
    words: WordPlan
    terms: str
    run: str
    round_index: int
    position: int | None = None


def admit(
    text: Any,
    message: Message,
    arrays: Mapping[str, Any],
    *,
    policy: SitePolicy,
    n_classes: int | None,
    masked: bool,
) -> Admitted:
    """Check a request that is to be answered.

    message: The message that came with it: names run and round.
    arrays: The broadcast.
    policy: Conditions of the site.
    n_classes: Classes of rows that are ready for the algorithm; None where the request
        says how rows are read.
    masked: Whether the answer is masked.
    Raises SiteRefusalError, WireError: Naming what the site does not accept.
    """
    run, index = run_and_round(message)
    _check_arrays(arrays, policy)
    request = read_request(text, arrays)
    cost = check_terms(request, policy, n_classes, masked=masked)
    n_classes = classes_of(request, n_classes)
    spec = _own_spec(request, n_classes, policy)
    _check_codec(request, spec)
    _check_randomizer(request, spec)
    try:
        words = request_words(request, masked=masked)
    except (ValueError, OverflowError) as error:
        raise SiteRefusalError(f"the answer cannot be written: {error}") from error
    _rehearse(str(text), request, n_classes)
    terms = terms_hash(str(text)).hex()
    position = _position(request, message)
    return Admitted(request, cost, words, terms, run, index, position)


def check_terms(
    request: Request, policy: SitePolicy, n_classes: int | None, *, masked: bool
) -> Cost:
    """Check all of a request but its broadcast, as far as that goes without it.

    Result: What an answer costs.
    Raises SiteRefusalError: Naming what the site does not accept.
    """
    if len(request.run) > _MAX_NAME:
        raise SiteRefusalError(f"the name of the run is longer than {_MAX_NAME}")
    if 0 < request.n_rounds <= request.round_index:
        raise SiteRefusalError(
            f"the run has {request.n_rounds} rounds, the request is of round "
            f"{request.round_index}"
        )
    if request.n_clients > _MAX_CLIENTS:
        raise SiteRefusalError(f"the sum has more than {_MAX_CLIENTS} clients")
    _check_reading(request, classes_of(request, n_classes))
    _check_numbers(request)
    if request.unit == "example" and getattr(request.algorithm, "by_place", False):
        raise SiteRefusalError(
            "unit='example' protects single rows, but what a row contributes depends "
            "on its position among the others"
        )
    return policy.check(request, masked=masked)


def classes_of(request: Request, n_classes: int | None) -> int:
    """Give the classes that the algorithm sees."""
    if n_classes is not None:
        if request.reading is not None:
            raise SiteRefusalError(
                "its rows are already in the form of the algorithm and cannot be "
                "read in another"
            )
        return n_classes
    if request.reading is None:
        raise SiteRefusalError("the request does not say what rows and labels mean")
    return len(request.reading.classes)


def run_and_round(message: Message) -> tuple[str, int]:
    """Run and number of a message.

    Raises SiteRefusalError: If it names none.
    """
    run, index = message.get("run"), message.get("round")
    if not isinstance(run, str) or type(index) is not int or not 0 <= index < 2**62:
        raise SiteRefusalError("the message names no run and round")
    if len(run) > _MAX_NAME:
        raise SiteRefusalError(f"the name of the run is longer than {_MAX_NAME}")
    return run, index


def _position(request: Request, message: Message) -> int | None:
    if request.entropy is None:
        return None
    position = message.get("position")
    if type(position) is not int or not 0 <= position < 2**31:
        raise SiteRefusalError("the message names no position of the client")
    return position


def _check_arrays(arrays: Mapping[str, Any], policy: SitePolicy) -> None:
    """Limit a broadcast before anything is done with it."""
    if len(arrays) > _MAX_ARRAYS:
        raise SiteRefusalError(f"the broadcast has more than {_MAX_ARRAYS} arrays")
    size = sum(getattr(array, "size", 0) for array in arrays.values())
    if size > policy.max_values:
        raise SiteRefusalError(
            f"its policy (max_values) allows {policy.max_values} numbers, the "
            f"broadcast has {size}"
        )


def _check_reading(request: Request, n_classes: int) -> None:
    """Refuse a reading that does not fit the algorithm."""
    if not 2 <= n_classes <= _MAX_CLASSES:
        raise SiteRefusalError(f"{n_classes} classes are out of range")
    reading = request.reading
    if reading is None:
        return
    n_features = getattr(request.algorithm, "n_features", None)
    if (n_features is not None) != (reading.rows == "features"):
        raise SiteRefusalError(
            f"the request reads {reading.rows!r}, the algorithm needs "
            f"{'features' if n_features is not None else 'scores'}"
        )
    if n_features is not None and n_features != reading.n_columns:
        raise SiteRefusalError(
            f"the request reads {reading.n_columns} features, the algorithm "
            f"{n_features}"
        )
    input_type = getattr(request.algorithm, "input_type", None)
    seen = reading.input_type if reading.rows == "given" else "logits"
    if input_type is not None and input_type != seen:
        raise SiteRefusalError(
            f"the request reads {seen!r}, the algorithm {input_type!r}"
        )


def _check_numbers(request: Request) -> None:
    """Refuse counts below 0, and noise whose law is not defined or takes long."""
    for field in fields(request.algorithm):  # type: ignore[arg-type]
        value = getattr(request.algorithm, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int and not 0 <= number < 2**64:
                raise SiteRefusalError(f"{field.name}={number} is out of range")
    n_rounds = getattr(request.claim, "n_rounds", 1)
    if n_rounds > _MAX_ROUNDS:
        raise SiteRefusalError(f"a claim of {n_rounds} rounds is out of range")
    randomizer = request.randomizer
    if isinstance(randomizer, (PolyaShares, LaplaceShares)):
        low, high = _SCALES
        if not all(low <= scale <= high for scale in randomizer.scales.values()):
            raise SiteRefusalError(f"noise scales must be between {low:g} and {high:g}")
    if isinstance(randomizer, PolyaShares) and not (
        1 <= randomizer.n_shares <= _MAX_CLIENTS
    ):
        raise SiteRefusalError(f"noise of {randomizer.n_shares} shares is not defined")
    for code in request.codec.blocks.values():
        if code.step is not None and code.spec.clip is not None:
            try:
                _ = code.limit
            except (ValueError, OverflowError) as error:
                raise SiteRefusalError(f"a block cannot be written: {error}") from error


def _own_spec(
    request: Request, n_classes: int, policy: SitePolicy
) -> dict[str, BlockSpec]:
    """Shapes and bounds that the site derives from the algorithm."""
    try:
        check_broadcast(request.algorithm, request.broadcast, n_classes)
        spec = dict(request.algorithm.spec(request.broadcast))
    except Exception as error:
        # Computed without rows: whatever the text says is about the request.
        raise SiteRefusalError(
            f"the algorithm does not fit the request: {error}"
        ) from error
    n_values = sum(prod(block.shape) for block in spec.values())
    if request.unit == "example" and n_values > _MAX_ROW_VALUES:
        raise SiteRefusalError(
            f"{n_values} numbers for each row are too many; at most "
            f"{_MAX_ROW_VALUES} are computed"
        )
    if n_values > policy.max_values:
        raise SiteRefusalError(
            f"its policy (max_values) allows {policy.max_values} numbers, the "
            f"algorithm sends {n_values}"
        )
    return spec


def _check_codec(request: Request, spec: Mapping[str, BlockSpec]) -> None:
    """Refuse a code that is not the one of the algorithm."""
    blocks = request.codec.blocks
    if set(spec) != set(blocks):
        raise SiteRefusalError(
            f"the request writes the blocks {sorted(blocks)}, the algorithm sends "
            f"{sorted(spec)}"
        )
    reports = isinstance(request.randomizer, (LocalReports, OneHotRows))
    if reports and request.unit != "client":
        raise SiteRefusalError("local reports need the unit 'client'")
    for name, announced in spec.items():
        asked = blocks[name].spec
        if replace(asked, clip=announced.clip, norm=announced.norm) != announced:
            raise SiteRefusalError(
                f"block {name!r} is written as {asked.kind} of shape {asked.shape}, "
                f"the algorithm sends {announced.kind} of shape {announced.shape}"
            )
        # One number has the same bound in both norms.
        if asked.norm != announced.norm and announced.size > 1:
            raise SiteRefusalError(f"block {name!r} is bounded in another norm")
        # A report is of one entry, which needs no clipping.
        expected = None if reports else announced.clip
        if asked.clip != expected:
            raise SiteRefusalError(
                f"block {name!r} is bounded by {asked.clip}, the algorithm by "
                f"{expected}"
            )


def _check_randomizer(request: Request, spec: Mapping[str, BlockSpec]) -> None:
    """Refuse reports on another number of cells than the block has."""
    if not isinstance(request.randomizer, LocalReports):
        return
    for name, oracle in request.randomizer.oracles.items():
        block = spec[name]
        if block.kind != "count" or block.norm != "l1" or block.clip != 1:
            raise SiteRefusalError(
                f"block {name!r} is not a count of one entry, as a report needs"
            )
        _check_oracle(name, oracle, block.size)


def _check_oracle(name: str, oracle: Oracle, n_cells: int) -> None:
    if oracle.domain != n_cells:
        raise SiteRefusalError(
            f"block {name!r} has {n_cells} cells, the report is on {oracle.domain}"
        )
    if oracle.kind == "rr" and n_cells != 1:
        raise SiteRefusalError(
            f"randomised response of one bit cannot report block {name!r} of "
            f"{n_cells} cells"
        )
    if not 0 < oracle.eps <= _MAX_REPORT_EPS:
        raise SiteRefusalError(
            f"the eps of a report must be between 0 and {_MAX_REPORT_EPS:g}"
        )
    own, other = oracle.thresholds
    if not 0 <= other < 2**64 or not 0 < own <= 2**64 or not oracle.p > oracle.q:
        raise SiteRefusalError(f"a report on block {name!r} would carry no information")


def _rehearse(text: str, request: Request, n_classes: int) -> None:
    """Answer for one public row, so that a request that cannot be computed is refused.

    A failure here does not depend on rows, so that the refusal may name it.
    """
    width = n_classes
    if request.reading is not None and request.reading.rows != "logits":
        width = request.reading.n_columns or n_classes
    fault = _fault_of_rehearsal(_Rehearsal(text, request, n_classes, width))
    if fault:
        raise SiteRefusalError(f"the request cannot be computed ({fault})")


class _Rehearsal:
    """Request that is identified by its text, which has a hash of its arrays."""

    def __init__(self, text: str, request: Request, n_classes: int, width: int) -> None:
        self.key = text, n_classes, width
        self.request, self.n_classes, self.width = request, n_classes, width

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rehearsal) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


# Clients of a simulation get the same text.
@lru_cache(maxsize=4)
def _fault_of_rehearsal(rehearsal: _Rehearsal) -> str:
    request = rehearsal.request
    rows = np.full((1, rehearsal.width), 1 / rehearsal.n_classes)
    labels = np.zeros(1, dtype=np.int16)
    weights = np.ones(1) if getattr(request.algorithm, "weighted", False) else None
    clients = FederatedDataset(
        rows, labels, np.array([0, 1]), ["public"], rehearsal.n_classes, weights
    )
    plain = replace(request, randomizer=None, entropy=None)
    try:
        with np.errstate(all="ignore"):
            respond(plain, clients)
    except Exception as error:
        return type(error).__name__
    return ""


def seeded(request: Request) -> bool:
    """Whether noise of the answer comes from a seed, as the server states."""
    return request.simulated or isinstance(request.entropy, SeededEntropy)


# Runs whose last round a site remembers, and bytes for all runs before them.
_RECENT_RUNS = 256
_OLD_RUNS_BYTES = 1 << 16


class AnsweredRuns:
    """Rounds that a site has answered, in a memory of bounded size.

    A round is answered once: the claim of a server pays for a run as a whole, so that
    a second answer would be for nothing. The server chooses the names of runs, without
    any order, and no memory of bounded size can both refuse every old name and accept
    every new one. This memory never accepts an old one:

    - of the last 256 runs it keeps the name and the last round;
    - of every run before, 16 bits that a hash of its name chooses are set in a filter
      of 64 KiB (Bloom, 1970). No bit is ever cleared. A name whose bits are all set is
      refused in every round.

    A new name is refused by mistake with probability ``(1 - exp(-16 n / 2**19))**16``
    after n old runs: below 1e-6 up to 17,900 and 1e-3 up to 34,000. Its server is told
    to start another run. A server that asks for very many runs can raise this
    probability, but cannot make a site forget.

    state: State of the site.
    kind: Prefix of its entries: plain sums, or masked ones.
    """

    def __init__(
        self, state: Mapping[str, Any], kind: Literal["plain", "seen"]
    ) -> None:
        self._names = [f"{kind}_{part}" for part in ("runs", "rounds", "before")]
        names, rounds, before = (state.get(name, ()) for name in self._names)
        self._last: dict[str, int] = dict(zip(names, rounds, strict=True))
        self._before = bytearray(before)

    def refusal(self, run: str, index: int) -> str:
        """Why a round is not answered; empty if it is a new one."""
        if run in self._last:
            if index > self._last[run]:
                return ""
            return f"already answered round {index} of run {run!r}, or a later one"
        if self._before and all(self._before[i] & bit for i, bit in _places(run)):
            return (
                f"already answered run {run!r}, or cannot tell it from one that it did "
                "answer; start another run"
            )
        return ""

    def add(self, run: str, index: int) -> None:
        """Remember a round, and the run as the latest one."""
        self._last.pop(run, None)
        self._last[run] = index
        while len(self._last) > _RECENT_RUNS:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._before = self._before or bytearray(_OLD_RUNS_BYTES)
            for i, bit in _places(oldest):
                self._before[i] |= bit

    def to_state(self) -> dict[str, Any]:
        """Entries of the state: lists, and bytes once there are older runs."""
        values = list(self._last), list(self._last.values()), bytes(self._before)
        return {n: v for n, v in zip(self._names, values, strict=True) if v != b""}


def _places(run: str) -> list[tuple[int, int]]:
    """Byte and bit of each of the 16 places of a name in the filter."""
    digest = blake2b(run.encode(), digest_size=64).digest()
    hashes = (int.from_bytes(digest[i : i + 4], "big") for i in range(0, 64, 4))
    return [(h // 8 % _OLD_RUNS_BYTES, 1 << h % 8) for h in hashes]

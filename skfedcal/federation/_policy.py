"""What a site demands before it answers, and what an answer costs it.

A site draws its own noise, so that it knows what it gives away under `DistributedDP`,
`LocalDP` and `SourceDP` from the scales and bounds in the request. Under `CentralDP`
the server draws the noise: the site has its word, and may demand more. Needs numpy
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import fsum, inf, sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from skfedcal._params import as_number
from skfedcal.exceptions import SiteRefusalError
from skfedcal.federation._endpoint import Request
from skfedcal.federation._wire import algorithm_names
from skfedcal.privacy._codec import Codec
from skfedcal.privacy._events import GaussianEvent, PrivacyEvent, PureEvent
from skfedcal.privacy._polya import polya_error
from skfedcal.privacy._randomizers import (
    GaussianShares,
    LaplaceShares,
    LocalReports,
    PolyaShares,
)
from skfedcal.privacy._samplers import GAUSSIAN_BASE_SIGMA
from skfedcal.privacy._slack import lattice_slack, table_slack, tv_slack

if TYPE_CHECKING:
    from skfedcal.federation._mask_plan import MaskPlan

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
        the others (above 50 clients) a site without a roster has the server's word for
        it.
    methods : tuple of str, default=None
        Names of algorithms that are answered, such as 'TemperaturePosterior' or
        'PooledFit:VectorMap'; None is all that the site knows.
    classes : tuple of str, default=None
        Labels of the site, as texts: a request must name these and no others. None
        takes any; rows whose label a request does not name then send zeros, and exact
        sums with and without a label tell how many rows have it.
    noise : {'none', 'central', 'shared', 'own'}, default='none'
        Least noise that must protect the answer. 'none': exact sums. 'central': the
        server says that it adds noise. 'shared': clients add shares of it before the
        sum. 'own': what leaves the site protects by itself.
    min_noise : float, default=0.0
        Least noise that the site draws, over the bound of a unit: ``1 / eps`` of an
        answer with Laplace noise or a randomised report, ``1 / mu`` of one with
        Gaussian noise. Above 0 it rules out noise that others draw.
    unit : {'example', 'client'}, default='example'
        What the noise must hide at least: one row, or all rows of the site together,
        as where a client is one person.
    allow_plain : bool, default=False
        Whether answers that do not protect by themselves may leave without a mask.
    allow_seeded_noise : bool, default=False
        Whether the server may name the seed of the site's noise: for simulations.
    max_colluders : int, default=0
        Clients of a sum that may tell the server what they know: the site does not
        count on their shares of noise, and demands that they cannot open masks (above
        50 clients, if it has a roster; otherwise it has the server's word for that).
    min_neighbours : int, default=14
        Least number of others that the site masks with, where not all mask with all.
    max_values : int, default=10_000_000
        Most numbers of an answer.

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
    allow_plain: bool = False
    allow_seeded_noise: bool = False
    max_colluders: int = 0
    min_neighbours: int = 14
    max_values: int = 10_000_000

    def __post_init__(self) -> None:
        if not isinstance(self.noise, str) or self.noise not in NOISES:
            raise ValueError(f"noise={self.noise!r} is unknown; pass one of {NOISES}.")
        if not isinstance(self.unit, str) or self.unit not in ("example", "client"):
            raise ValueError(f"unit={self.unit!r}: pass 'example' or 'client'.")
        for name, least in (
            ("min_clients", 1),
            ("max_colluders", 0),
            ("max_values", 1),
            ("min_neighbours", 2),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(
                    f"{name}={value!r}: pass a whole number from {least} on."
                )
        if not 0 <= as_number("min_noise", self.min_noise) < inf:
            raise ValueError(f"min_noise={self.min_noise!r}: pass a number from 0 on.")

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
            For a name that is no condition: a policy with a misspelt condition would
            be none.
        """
        known = {f.name: type(f.default) for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            name = key.replace("-", "_")
            if name not in known:
                raise ValueError(
                    f"{key!r} is no condition of a site; known are "
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
        """Refuse a request that breaks a condition; give what an answer costs.

        Looks at everything but the broadcast.

        Raises
        ------
        SiteRefusalError
            Naming the condition.
        """
        if not getattr(request.algorithm, "reads_rows", True):
            # A sum of public numbers, which is masked all the same.
            return Cost("none", None, inf)
        names = algorithm_names(request)
        if self.methods is not None and not set(names) & set(self.methods):
            raise SiteRefusalError(
                f"its policy (methods) does not allow {names[-1]!r}; allowed are "
                f"{', '.join(self.methods)}"
            )
        self._check_classes(request)
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
                "its policy (unit) demands noise that hides all its rows, the request "
                "hides one"
            )
        if not masked and cost.kind != "own" and not self.allow_plain:
            raise SiteRefusalError(
                "its policy (allow_plain) does not allow an answer without a mask"
            )
        if not masked and cost.kind == "shared" and not self.allow_seeded_noise:
            # Alone with its share it would cost far more than is counted here.
            raise SiteRefusalError(
                "a share of noise protects in a masked sum only; without a mask it is "
                "for simulations (allow_seeded_noise)"
            )
        return cost

    def check_masks(self, plan: MaskPlan) -> None:
        """Refuse terms of a masked round that hide too little.

        Raises
        ------
        SiteRefusalError
            Naming the condition.
        """
        from skfedcal.federation._mask_plan import COMPLETE

        if not plan.complete and plan.n_clients <= COMPLETE:
            raise SiteRefusalError(
                f"up to {COMPLETE} clients it masks with all of them, the round of "
                f"{plan.n_clients} has {plan.degree} neighbours"
            )
        if not plan.complete and plan.degree < self.min_neighbours:
            raise SiteRefusalError(
                f"its policy (min_neighbours) demands masks with {self.min_neighbours} "
                f"others, the round has {plan.degree}"
            )
        if plan.complete and 2 * plan.threshold <= plan.n_clients + self.max_colluders:
            raise SiteRefusalError(
                f"its policy (max_colluders) allows for {self.max_colluders} "
                f"colluders, which a threshold of {plan.threshold} of {plan.n_clients} "
                "does not bear"
            )

    def _check_classes(self, request: Request) -> None:
        if self.classes is None or request.reading is None:
            return
        if {str(label) for label in request.reading.classes} != set(self.classes):
            raise SiteRefusalError(
                f"its policy (classes) has {len(self.classes)} labels, the request "
                "does not name the same"
            )

    def _check_noise(self, cost: Cost) -> None:
        if NOISES.index(cost.kind) < NOISES.index(self.noise):
            raise SiteRefusalError(
                f"its policy (noise) demands {self.noise!r}, the request has "
                f"{cost.kind!r}"
            )
        if cost.noise < self.min_noise:
            raise SiteRefusalError(
                f"its policy (min_noise) demands noise of {self.min_noise:g} times the "
                f"bound, the request has {cost.noise:.4g}"
            )


def _texts(key: str, value: Any) -> tuple[str, ...]:
    """Entries of a list, or of a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{key}={value!r}: expected a list, or a text with commas.")
    return tuple(text for text in (str(part).strip() for part in parts) if text)


def answer_cost(request: Request, n_honest: int) -> Cost:
    """What one answer costs the site that gives it.

    Parameters
    ----------
    request : Request
        The question, without its broadcast.
    n_honest : int
        Clients of the sum, this site included, whose shares of noise stay secret.

    Raises
    ------
    SiteRefusalError
        If noise and bounds do not fit together.
    """
    codec, randomizer = request.codec, request.randomizer
    n_values = sum(code.spec.size for code in codec.blocks.values())
    if isinstance(randomizer, GaussianShares):
        if n_honest < 1:
            raise SiteRefusalError("no client is left whose noise it counts on")
        square = fsum(
            code.limit * code.spec.groups for code in _bounded(codec, "l2").values()
        )
        mu = sqrt(square / n_honest) / GAUSSIAN_BASE_SIGMA
        slack = lattice_slack(n_values, n_honest)
        event = GaussianEvent(mu, eps_slack=slack.eps, delta_slack=slack.delta)
        return Cost("shared", event, 1 / mu if mu else inf)
    if isinstance(randomizer, PolyaShares):
        if randomizer.n_shares < 1:
            raise SiteRefusalError("the noise is made of no shares")
        if n_honest < randomizer.n_shares:
            raise SiteRefusalError(
                f"the noise is made of {randomizer.n_shares} shares, and it counts on "
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

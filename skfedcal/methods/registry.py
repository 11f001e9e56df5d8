"""The list of methods: everything that names a method is derived from this file.

Public names, names in messages to sites, words of site policies and of the command
line, saved files, exported maps, tables of `compare` and the conformance tests
(`skfedcal.testing`) read this list. A new method is one entry of `BUILT_IN`; a method
of another package calls `register_method`, or names its entry in its metadata under
the entry point group "skfedcal.methods".

Classes and functions are named by a path ``"package.module:Name"`` and imported when
they are used: a site needs numpy only.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

Kind = Literal["calibrator", "evaluation", "training", "service"]
GROUP = "skfedcal.methods"


def load_object(path: str) -> Any:
    """Import what a path ``"package.module:Name"`` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def class_path(cls: type) -> str:
    """Path of a class, as entries of the registry write it."""
    return f"{cls.__module__}:{cls.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What sites can be asked to compute, and its name in messages.

    Parameters
    ----------
    name : str
        Name and version in messages, such as 'temperature.posterior/2'. It stays when
        the class is renamed; an algorithm that computes something else has another.
    path : str
        ``'package.module:Class'`` of the frozen dataclass, whose module needs numpy
        only.
    cases : tuple of dict, default=({},)
        Parameters with which tests and site audits run it: without noise, and with the
        bounds that noise needs.
    rows : {'logits', 'given', 'features'}, default='logits'
        How it reads rows: centred logits, scores as they are, or features.
    n_classes : int, default=None
        Number of classes that it is restricted to.

    Examples
    --------
    >>> from skfedcal.methods.registry import Algorithm
    >>> grid = Algorithm(name="temperature.grid/1",
    ...                  path="skfedcal.methods.temperature.rounds:TemperatureGrid")
    >>> grid.load().__name__
    'TemperatureGrid'
    """

    name: str
    path: str
    cases: tuple[Mapping[str, Any], ...] = ({},)
    rows: Literal["logits", "given", "features"] = "logits"
    n_classes: int | None = None

    def load(self) -> type:
        """Import the class."""
        out: type = load_object(self.path)
        return out


@dataclass(frozen=True, slots=True)
class Case:
    """Parameters with which conformance tests fit an estimator.

    Parameters
    ----------
    params : dict, default={}
        Parameters of the constructor.
    exempt : dict of str to str, default={}
        Names of checks that do not hold, and why.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: its names, its algorithms and how it is tested.

    Parameters
    ----------
    word : str
        Word by which policies of sites and messages to users name it.
    estimator : str, default=''
        ``'package.module:Class'`` of the estimator, or of the class that collects it.
    algorithms : tuple of Algorithm or str
        Algorithms of its rounds; those of other methods by their names.
    kind : {'calibrator', 'evaluation', 'training', 'service'}, default='calibrator'
        What it is for.
    family : str, default=''
        Family of maps in its requests, where several methods share an algorithm.
    map : str, default=''
        ``'package.module:function'`` of its map as a graph, for `predict_proba`, torch
        and ONNX; without one it needs `_calibrate` and cannot be exported.
    command : str, default=''
        Word of the command line.
    options : tuple of str, default=()
        Parameters that have an option of the command line.
    facts : dict of str to str, default={}
        Fitted attribute or parameter to show after a fit, by its name for the reader.
    compared : bool, default=False
        Whether `compare` runs it by default.
    variants : dict of str to dict, default={}
        Parameters of variants that have a name of their own in `compare`.
    cases : tuple of Case
        What conformance tests fit; those with `eps` are private. By default the
        parameters as they are, and ``eps=1.0, if_improves=False``.
    exempt : dict of str to str, default={}
        Names of checks that do not hold for any case, and why.

    Examples
    --------
    >>> from skfedcal.methods.registry import Method
    >>> method = Method(
    ...     word="temperature",
    ...     estimator="skfedcal.methods.temperature.estimator:FedTempCalibrator",
    ...     algorithms=("temperature.newton/1", "temperature.posterior/2"),
    ... )
    >>> method.estimator_name
    'FedTempCalibrator'
    """

    word: str
    estimator: str = ""
    algorithms: tuple[Algorithm | str, ...] = ()
    kind: Kind = "calibrator"
    family: str = ""
    map: str = ""
    command: str = ""
    options: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    compared: bool = False
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cases: tuple[Case, ...] = field(
        default_factory=lambda: (Case(), Case({"eps": 1.0, "if_improves": False}))
    )
    exempt: Mapping[str, str] = field(default_factory=dict)

    @property
    def estimator_name(self) -> str:
        """Name of the estimator; empty if there is none."""
        return self.estimator.partition(":")[2]

    @property
    def own_algorithms(self) -> tuple[Algorithm, ...]:
        """Algorithms that this entry defines."""
        return tuple(a for a in self.algorithms if isinstance(a, Algorithm))

    @property
    def algorithm_names(self) -> tuple[str, ...]:
        """Names of all its algorithms in messages."""
        return tuple(a if isinstance(a, str) else a.name for a in self.algorithms)

    @property
    def has_noise(self) -> bool:
        """Whether it can be fitted under `eps`, as one of its cases does."""
        return any({"eps", "privacy"} & set(case.params) for case in self.cases)

    def load(self) -> type:
        """Import the estimator."""
        out: type = load_object(self.estimator)
        return out

    def describe(self, fitted: Any) -> dict[str, Any]:
        """Facts of a fitted estimator, by their names for the reader."""
        return {name: getattr(fitted, key) for name, key in self.facts.items()}


# Families of maps that algorithms of scaling carry, by their names in messages.
_MAPS = "skfedcal.methods.scaling.families"
FAMILIES = {
    "scaling.matrix/1": f"{_MAPS}:MatrixMap",
    "scaling.order_preserving/1": f"{_MAPS}:OrderPreservingMap",
    "scaling.vector/1": f"{_MAPS}:VectorMap",
}

# Comparison of a map with its input, which the word of every calibrator allows.
HELD_BACK, GAIN = "held_back.losses/1", "held_back.differences/1"

# Why some checks of `skfedcal.testing` do not hold.
_BIASES = {"check_order_kept": "its map differs by class, which may change the order"}
_TABLE = {"check_order_kept": "a table by bins need not be monotone in every class"}
_EVIDENCE = {"check_duplicated_clients": "twice the rows are twice the evidence"}
_LOCAL = {"check_merged_clients": "a mean of local optima is not the optimum of all"}
_START = "it starts at random weights, one set per class, and visits rows in turn"
_UNDERFLOW = "log-probabilities stay finite where probabilities underflow to 0"
_NETWORK = {
    "check_sklearn": "batches of rows are not weighted rows; " + _UNDERFLOW,
    "check_client_and_row_order": _START,
    "check_merged_clients": _START,
    "check_class_permutation": _START,
}
_CLASS_SCORES = {
    "check_order_kept": "each class has a curve of its own",
    "check_row_shift": "scores are used as they are, as scikit-learn does",
}
_SMOOTHED = {"check_duplicated_clients": "its targets depend on the number of rows"}
# Maps themselves: with if_improves most would be the identity on a few clients.
_PRIVATE: dict[str, Any] = {"eps": 1.0, "if_improves": False}
_BOUNDS = {"low": -1.4, "high": 3.5}
_ONE_ROW = {"clip": 1.0, "max_examples": 1}
_HISTOGRAM_CLIPS = {"clip_positive": 1.0, "clip_negative": 1.5}

BUILT_IN: tuple[Method, ...] = (
    Method(
        word="auto",
        estimator="skfedcal.methods.auto.estimator:FedAutoCalibrator",
        algorithms=(
            "temperature.newton/1",
            "temperature.grid/1",
            "temperature.posterior/2",
            "bias_temperature.newton/1",
            "shape.newton/3",
            "shape.posterior/2",
        ),
        command="auto",
        options=("class_prior",),
        facts={"choice": "choice_", "reason": "reason_"},
        cases=(Case({}, _BIASES), Case({"keep_order": True}), Case(_PRIVATE, _BIASES)),
    ),
    Method(
        word="temperature",
        estimator="skfedcal.methods.temperature.estimator:FedTempCalibrator",
        algorithms=(
            Algorithm(
                name="temperature.newton/1",
                path="skfedcal.methods.temperature.rounds:TemperatureNewton",
            ),
            Algorithm(
                name="temperature.grid/1",
                path="skfedcal.methods.temperature.rounds:TemperatureGrid",
                cases=({"n_points": 5}, {"n_points": 5, "clip": 1.0}),
            ),
            Algorithm(
                name="temperature.average/1",
                path="skfedcal.methods.temperature.rounds:TemperatureAverage",
                cases=({}, {"clip": 0.5}),
            ),
            Algorithm(
                name="temperature.posterior/2",
                path="skfedcal.methods.temperature.posterior:TemperaturePosterior",
            ),
        ),
        map="skfedcal.methods.temperature.rounds:temperature",
        command="temp",
        options=("solver",),
        facts={"temperature": "temperature_"},
        compared=True,
        cases=(
            Case(),
            Case({"solver": "grid"}),
            Case({"solver": "average"}, _LOCAL),
            Case(_PRIVATE),
            Case({**_PRIVATE, "solver": "grid"}),
            Case({**_PRIVATE, "solver": "average"}),
        ),
    ),
    Method(
        word="bias_temperature",
        estimator="skfedcal.methods.bias_temperature.estimator:FedBiasTempCalibrator",
        algorithms=(
            Algorithm(
                name="bias_temperature.newton/1",
                path="skfedcal.methods.bias_temperature.rounds:BiasTemperatureNewton",
            ),
            Algorithm(
                name="bias_temperature.residual/1",
                path="skfedcal.methods.bias_temperature.rounds:BiasTemperatureResidual",
            ),
            "shape.posterior/2",
        ),
        map="skfedcal.methods.bias_temperature.rounds:bias_temperature",
        command="biastemp",
        options=("residual", "class_prior"),
        facts={"temperature": "temperature_"},
        compared=True,
        cases=(
            Case(),
            Case({"residual": "bins"}),
            Case({**_PRIVATE, "class_prior": "uniform"}),
            Case(_PRIVATE),
        ),
        exempt=_BIASES,
    ),
    Method(
        word="shape",
        estimator="skfedcal.methods.shape.estimator:FedShapeCalibrator",
        algorithms=(
            Algorithm(
                name="shape.newton/3",
                path="skfedcal.methods.shape.rounds:MapNewton",
                cases=({}, {"kinds": ("T", "S"), "choose": True}),
            ),
            Algorithm(
                name="shape.posterior/2",
                path="skfedcal.methods.shape.noisy_rounds:ShapePosterior",
            ),
        ),
        map="skfedcal.methods.shape.rounds:shared_shape",
        command="shape",
        options=("class_prior",),
        facts={"temperature": "temperature_"},
        compared=True,
        cases=(
            Case({}, _BIASES),
            Case({"keep_order": True}),
            Case({"matrix": True}, _BIASES),
            Case({**_PRIVATE, "class_prior": "uniform"}, _BIASES),
            Case(_PRIVATE, _BIASES),
        ),
    ),
    Method(
        word="bbq",
        estimator="skfedcal.methods.bins.estimator:FedBBQCalibrator",
        algorithms=("bins.counts/1",),
        map="skfedcal.methods.bins.rounds:class_bins",
        command="bbq",
        options=("n_levels",),
        facts={"levels": "n_levels"},
        compared=True,
        variants={"FedBBQ-all": {"weighting": "all"}},
        cases=(
            Case({"n_levels": 3}),
            Case(
                {"n_levels": 3, "bins": "frequency", "weighting": "changed"},
                {"check_sklearn": _UNDERFLOW},
            ),
            Case({**_PRIVATE, "n_levels": 3, "weighting": "all"}),
        ),
        exempt=_TABLE | _EVIDENCE,
    ),
    Method(
        word="order_preserving",
        estimator="skfedcal.methods.scaling.estimator:FedOPVectorCalibrator",
        algorithms=("scaling.pooled/1", "scaling.average/1"),
        family="scaling.order_preserving/1",
        map="skfedcal.methods.scaling.rounds:order_preserving",
        command="opvector",
        facts={"converged": "converged_"},
        compared=True,
        cases=(Case(), Case({**_PRIVATE, "local_iter": 5})),
    ),
    Method(
        word="vector",
        estimator="skfedcal.methods.scaling.estimator:FedVectorCalibrator",
        algorithms=(
            Algorithm(
                name="scaling.pooled/1",
                path="skfedcal.methods.scaling.rounds:PooledFit",
                cases=(
                    {"family": "scaling.vector/1"},
                    {"family": "scaling.matrix/1", "l2": (None, None, 1.0)},
                    {"family": "scaling.order_preserving/1"},
                ),
            ),
            Algorithm(
                name="scaling.average/1",
                path="skfedcal.methods.scaling.rounds:LocalAverage",
                cases=(
                    {"family": "scaling.vector/1"},
                    {"family": "scaling.vector/1", "clip": 1.0},
                ),
            ),
        ),
        family="scaling.vector/1",
        map="skfedcal.methods.scaling.rounds:vector",
        command="vector",
        facts={"converged": "converged_"},
        compared=True,
        cases=(
            Case(),
            Case({"solver": "average", "local_solver": "gd", "local_iter": 5}, _LOCAL),
            Case({**_PRIVATE, "local_iter": 5}),
        ),
        exempt=_BIASES,
    ),
    Method(
        word="network",
        estimator="skfedcal.methods.network.estimator:FedMLPCalibrator",
        algorithms=(
            Algorithm(
                name="network.average/1",
                path="skfedcal.methods.network.rounds:MLPAveraging",
                cases=(
                    {"hidden": (3,), "epochs": 1},
                    {"hidden": (3,), "epochs": 1, "clip": 1.0},
                ),
            ),
        ),
        map="skfedcal.methods.network.rounds:network",
        command="mlp",
        facts={"epochs per round": "epochs"},
        compared=True,
        cases=(
            Case({"hidden": (6, 5), "epochs": 1, "batch_size": 4}),
            Case({**_PRIVATE, "hidden": (6,)}),
        ),
        exempt=_NETWORK,
    ),
    Method(
        word="accuracy_temperature",
        estimator="skfedcal.methods.accuracy_temperature.estimator:FedAccTempCalibrator",
        algorithms=(
            Algorithm(
                name="accuracy_temperature.root/1",
                path="skfedcal.methods.accuracy_temperature.rounds:AccuracyRoot",
                cases=(_BOUNDS,),
            ),
            Algorithm(
                name="accuracy_temperature.gap/1",
                path="skfedcal.methods.accuracy_temperature.rounds:GapParts",
                cases=(_BOUNDS,),
            ),
            Algorithm(
                name="accuracy_temperature.ece_grid/1",
                path="skfedcal.methods.accuracy_temperature.rounds:EceGrid",
                cases=({**_BOUNDS, "n_bins": 4},),
            ),
            Algorithm(
                name="accuracy_temperature.search/1",
                path="skfedcal.methods.accuracy_temperature.rounds:TemperatureSearch",
                cases=(
                    _BOUNDS,
                    {**_BOUNDS, "objective": "ece", "n_bins": 3},
                    {**_BOUNDS, "objective": "nll"},
                ),
            ),
            "temperature.newton/1",
        ),
        map="skfedcal.methods.temperature.rounds:temperature",
        command="acctemp",
        facts={"temperature": "temperature_", "queries": "n_queries_"},
        cases=(
            Case(),
            Case({"objective": "ece", "n_bins": 5}),
            Case({"search": "two_point"}),
            Case({**_PRIVATE, "n_queries": 2}),
            Case({**_PRIVATE, "n_queries": 5, "clip": 3}),
            # Few queries end in one of a few brackets, which two fits may share.
            Case({**_PRIVATE, "search": "bisect", "n_queries": 30}),
            Case({**_PRIVATE, "objective": "nll", "n_queries": 30}),
            Case({**_PRIVATE, "objective": "ece", "n_queries": 30}),
        ),
    ),
    Method(
        word="matrix",
        estimator="skfedcal.methods.scaling.estimator:FedMatrixCalibrator",
        algorithms=("scaling.pooled/1", "scaling.average/1"),
        family="scaling.matrix/1",
        map="skfedcal.methods.scaling.rounds:matrix",
        command="matrix",
        facts={"converged": "converged_"},
        cases=(
            Case(),
            Case({**_PRIVATE, "solver": "average", "local_iter": 5}),
        ),
        exempt=_BIASES,
    ),
    Method(
        word="histogram",
        estimator="skfedcal.methods.score_curves.estimator:FedHistogramCalibrator",
        algorithms=(
            Algorithm(
                name="scores.counts/1",
                path="skfedcal.methods.score_curves.rounds:ScoreCounts",
                cases=(
                    {"levels": (3,)},
                    {"levels": (3,), **_ONE_ROW},
                    {"levels": (3,), **_ONE_ROW, "weighting": "client"},
                    {"levels": (3,), **_ONE_ROW, "norm": "l2"},
                ),
                rows="given",
                n_classes=2,  # it has a table for each of two classes
            ),
            Algorithm(
                name="scores.class_counts/1",
                path="skfedcal.methods.score_curves.rounds:ClassScoreCounts",
                cases=(
                    {"levels": (3,), "space": "both"},
                    {"levels": (3,), **_ONE_ROW, "space": "both"},
                    {"levels": (1, 3), **_ONE_ROW, "scores": "top"},
                    {"levels": (3,), **_ONE_ROW, "by_round": True},
                ),
                rows="given",
            ),
        ),
        map="skfedcal.methods.score_curves.rounds:score_curves",
        command="histogram",
        facts={"curve": "method_"},
        cases=(
            Case(),
            Case({"method": "isotonic", "multiclass": "top"}),
            Case({"method": "beta", "space": "prob"}),
            Case({"method": "bbq", "height": 4}),
            Case(_PRIVATE),
            Case({**_PRIVATE, "method": "bins", "multiclass": "ovr", "height": 3}),
        ),
        exempt=_TABLE | _EVIDENCE,
    ),
    Method(
        word="class_scores",
        estimator="skfedcal.methods.class_scores.estimator:FedOneVsRestCalibrator",
        algorithms=(
            Algorithm(
                name="class_scores.sigmoid/1",
                path="skfedcal.methods.class_scores.rounds:SigmoidNewton",
                rows="given",
            ),
            Algorithm(
                name="class_scores.table/1",
                path="skfedcal.methods.class_scores.rounds:ScoreTable",
                rows="given",
            ),
        ),
        command="onevsrest",
        facts={"curve": "method"},
        cases=(Case({}, _SMOOTHED), Case({"method": "isotonic"})),
        exempt=_CLASS_SCORES,
    ),
    Method(
        word="bins",
        estimator="skfedcal.methods.bins.estimator:FedBinCalibrator",
        algorithms=(
            Algorithm(
                name="bins.counts/1",
                path="skfedcal.methods.bins.rounds:ClassHistograms",
                cases=(
                    {"n_bins": 4},
                    {"n_bins": 4, **_HISTOGRAM_CLIPS},
                    {"n_bins": 4, **_HISTOGRAM_CLIPS, "per_class": True},
                ),
            ),
        ),
        map="skfedcal.methods.bins.rounds:class_bins",
        command="bin",
        options=("n_bins",),
        facts={"bins per class": "n_bins"},
        cases=(
            Case({"n_bins": 4}),
            Case({"n_bins": 5, "normalize": "logit"}),
            Case({**_PRIVATE, "n_bins": 4}),
            Case({**_PRIVATE, "n_bins": 4, "clip_per_class": True, "noise": "joint"}),
        ),
        exempt=_TABLE,
    ),
    Method(
        word="top_bins",
        estimator="skfedcal.methods.top_bins.estimator:FedTopBinCalibrator",
        algorithms=(
            Algorithm(
                name="top_bins.counts/1",
                path="skfedcal.methods.top_bins.rounds:TopBinCounts",
                cases=({"n_bins": 4}, {"n_bins": 4, **_ONE_ROW}),
            ),
        ),
        map="skfedcal.methods.top_bins.rounds:top_bins",
        command="topbin",
        options=("n_bins",),
        facts={"bins": "n_bins"},
        cases=(
            Case({"n_bins": 5}),
            Case({"shrink": False, "monotone": False, "keep_order": False}, _TABLE),
            Case({**_PRIVATE, "n_bins": 4, "clip": 3}),
        ),
    ),
    Method(
        word="held_back",
        kind="evaluation",
        algorithms=(
            Algorithm(
                name="held_back.fit/1",
                path="skfedcal.methods.held_back:HeldBackFit",
                cases=({"inner": "temperature.newton/1"}, {"inner": "bins.counts/1"}),
            ),
            Algorithm(
                name=HELD_BACK,
                path="skfedcal.methods.held_back:MapLosses",
                cases=(
                    {"settings": {"temperature_": 2.0}},
                    {"settings": {"temperature_": 0.5}, "held": False},
                ),
            ),
            Algorithm(
                name=GAIN,
                path="skfedcal.evaluation.paired_rounds:MapDifferences",
                cases=(
                    {"metric": "log_loss", "settings": {"temperature_": 2.0}},
                    {
                        "metric": "log_loss",
                        "settings": {"temperature_": 0.5},
                        "bound": 2.0,
                        "max_examples": 1,
                    },
                ),
            ),
        ),
    ),
    Method(
        word="score_histogram",
        kind="evaluation",
        estimator="skfedcal.evaluation.histogram:ScoreHistogram",
        algorithms=(
            "scores.counts/1",
            "scores.class_counts/1",
            Algorithm(
                name="scores.moments/1",
                path="skfedcal.evaluation.rounds:ScoreMoments",
                cases=(
                    {"levels": (3,), "space": "both", "edges": (0, 3, 4, 8)},
                    {"levels": (2,), "scores": "top", "edges": (0, 1, 4)},
                ),
                rows="given",
            ),
        ),
    ),
    Method(
        word="paired_scores",
        kind="evaluation",
        algorithms=(
            Algorithm(
                name="scores.paired_counts/1",
                path="skfedcal.evaluation.paired_rounds:PairedScoreCounts",
                cases=({"levels": (3,)}, {"levels": (3,), **_ONE_ROW}),
                rows="features",
                n_classes=2,
            ),
            Algorithm(
                name="scores.paired_differences/1",
                path="skfedcal.evaluation.paired_rounds:PairedDifferences",
                cases=(
                    {},
                    {"metric": "accuracy", "held": True},
                    {"metric": "log_loss", "bound": 2.0, "max_examples": 1},
                ),
                rows="features",
            ),
        ),
    ),
    Method(
        word="residuals",
        kind="evaluation",
        estimator="skfedcal.evaluation.classwise:ClasswiseResiduals",
        algorithms=(
            Algorithm(
                name="residuals.sums/1",
                path="skfedcal.evaluation.rounds:ClassResiduals",
                cases=(
                    {"n_bins": 4},
                    {"n_bins": 4, "private": True, "max_examples": 2},
                ),
                rows="given",
            ),
            Algorithm(
                name="residuals.moments/1",
                path="skfedcal.evaluation.rounds:ResidualMoments",
                cases=({"n_bins": 4}, {"n_bins": 4, "max_examples": 2}),
                rows="given",
            ),
        ),
    ),
    Method(
        word="one_vs_rest",
        kind="evaluation",
        algorithms=(
            Algorithm(
                name="scores.one_vs_rest/1",
                path="skfedcal.evaluation.rounds:OneVsRestCounts",
                cases=(
                    {"levels": (2,), "scores": "ovr"},
                    {"levels": (2,), "scores": "ovr", "clip": 2.0, "max_examples": 1},
                ),
                rows="given",
            ),
            Algorithm(
                name="scores.one_vs_rest_moments/1",
                path="skfedcal.evaluation.rounds:OneVsRestMoments",
                cases=({"levels": (2,), "scores": "ovr"},),
                rows="given",
            ),
        ),
    ),
    Method(
        word="class_tables",
        kind="evaluation",
        algorithms=(
            Algorithm(
                name="classes.tables/1",
                path="skfedcal.evaluation.rounds:ClassTables",
                cases=(
                    {"parts": ("confusion", "scores", "top"), "heights": (0, 2, 2)},
                    {
                        "parts": ("margins", "scores", "pairs"),
                        "heights": (0, 2, 1),
                        "private": True,
                        "max_examples": 1,
                    },
                    {
                        "parts": ("margins", "scores", "pairs"),
                        "heights": (0, 2, 1),
                        "private": True,
                        "by_values": True,
                    },
                    {
                        "parts": ("scores",),
                        "heights": (2,),
                        "private": True,
                        "max_examples": 1,
                        "one_cell": True,
                    },
                ),
                rows="given",
            ),
            Algorithm(
                name="classes.moments/1",
                path="skfedcal.evaluation.rounds:TableMoments",
                cases=(
                    {
                        "parts": ("confusion", "scores", "top"),
                        "heights": (0, 2, 2),
                        "edges": ((0, 1), (0, 1, 4), (0, 2, 4)),
                    },
                    {"parts": ("pairs",), "heights": (2,), "edges": ((0, 4),)},
                ),
                rows="given",
            ),
        ),
    ),
    Method(
        word="gaussian_head",
        kind="training",
        estimator="skfedcal.training._gaussian_head:FedGaussianHead",
        algorithms=(
            Algorithm(
                name="gaussian_head.moments/1",
                path="skfedcal.training.class_statistics:ClassMoments",
                cases=(
                    {"n_features": 3},
                    {"n_features": 3, "max_norm": 2.0, "clip": 2.0, "n_rounds": 1},
                ),
                rows="features",
            ),
        ),
    ),
    Method(
        word="self_test",
        kind="service",
        algorithms=(
            Algorithm(
                name="self_test.numbers/1",
                path="skfedcal.federation.self_test_rounds:SelfTest",
            ),
        ),
    ),
)

# Place of each estimator of this package.
_BUILT_IN_PLACES = {m.estimator: i for i, m in enumerate(BUILT_IN)}

_ADDED: dict[str, Method] = {}

# Algorithms that a site computes only if its policy says so in words of its own, and
# which need more than numpy there.
OPT_IN = (
    Algorithm(
        name="training.fedavg/1",
        path="skfedcal.training.site_training:SiteTraining",
        cases=({"n_features": 3}, {"n_features": 3, "clip": 1.0, "hidden": (4,)}),
        rows="features",
    ),
)


def methods(kind: Kind | None = None) -> tuple[Method, ...]:
    """All methods, or those of one kind: the built-in ones, then registered ones."""
    _discover()
    found = (*BUILT_IN, *_ADDED.values())
    return tuple(m for m in found if kind is None or m.kind == kind)


def algorithms() -> dict[str, Algorithm]:
    """All algorithms, by their names in messages."""
    return {a.name: a for m in methods() for a in m.own_algorithms}


def algorithm_name(cls: type) -> str | None:
    """Name in messages of a class of algorithms; None if it is not registered."""
    path = class_path(cls)
    known = (*algorithms().values(), *OPT_IN)
    return next((a.name for a in known if a.path == path), None)


def family_name(cls: type) -> str | None:
    """Name in messages of a family of maps; None if there is none."""
    path = class_path(cls)
    return next((name for name, known in FAMILIES.items() if known == path), None)


def method_of(cls: type) -> Method | None:
    """Entry of exactly this estimator class; None for others, subclasses included."""
    path = class_path(cls)
    place = _BUILT_IN_PLACES.get(path)
    if place is not None:
        return BUILT_IN[place]
    return next((m for m in methods() if m.estimator == path), None)


def short_name(name: str) -> str:
    """Name in small letters without its frame: 'temp' for 'FedTempCalibrator'."""
    return name.lower().removesuffix("calibrator").removeprefix("fed")


def configurations() -> dict[str, tuple[Method, Mapping[str, Any]]]:
    """Calibrators and their variants by their names in tables of `compare`."""
    found: dict[str, tuple[Method, Mapping[str, Any]]] = {}
    for method in methods("calibrator"):
        found[method.estimator_name.removesuffix("Calibrator")] = (method, {})
        found |= {name: (method, params) for name, params in method.variants.items()}
    return found


def register_method(method: Method) -> Method:
    """Add a method of another package to the registry.

    It is then known to sites in this process (messages, policies), `load`, `to_torch`,
    `to_onnx`, `compare` and the command line, and `skfedcal.testing.check_method` tests
    it. Sites and servers in other processes must register it as well; a package can
    name its entry in its metadata instead, under the entry point group
    "skfedcal.methods".

    Parameters
    ----------
    method : Method
        The entry.

    Returns
    -------
    method : Method
        The same.

    Raises
    ------
    ValueError
        If one of its names is taken or has the wrong form. Registering an equal entry
        twice has no effect.

    Examples
    --------
    >>> from skfedcal.methods.registry import Algorithm, Method, register_method
    >>> register_method(Method(
    ...     word="temperature",
    ...     estimator="my_package.estimator:MyCalibrator",
    ...     algorithms=(Algorithm(name="mine.sums/1", path="my_package.rounds:Mine"),),
    ... ))
    Traceback (most recent call last):
    ...
    ValueError: The word 'temperature' is taken by another method.
    """
    if not isinstance(method, Method):
        raise TypeError(
            f"method is of type {type(method).__name__}; pass a Method of "
            "skfedcal.methods.registry."
        )
    _discover()
    _add(method)
    return method


def _add(method: Method) -> None:
    if _ADDED.get(method.word) == method:
        return
    _check_forms(method)
    others = (*BUILT_IN, *_ADDED.values())
    taken = {
        "word": {w for m in others for w in _names_of(m)},
        "algorithm": {a.name for m in others for a in m.own_algorithms},
    }
    known = taken["algorithm"] | {a.name for a in method.own_algorithms}
    for what, names in (
        ("word", _names_of(method)),
        ("algorithm", [a.name for a in method.own_algorithms]),
    ):
        for name in names:
            if name in taken[what]:
                raise ValueError(f"The {what} {name!r} is taken by another method.")
    for name in method.algorithm_names:
        if name not in known:
            raise ValueError(
                f"Method {method.word!r} names the algorithm {name!r}, which is not "
                "registered. Pass an Algorithm."
            )
    _ADDED[method.word] = method


def _check_forms(method: Method) -> None:
    """Raise ValueError for names and paths that cannot be used."""
    path, shown = r"([\w.]+:\w+)?", "'package.module:Name'"
    algorithm = r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+/[0-9]+"
    for name, value, form, example in (
        ("word", method.word, r"[a-z][a-z0-9_]*", "'my_method'"),
        ("command", method.command, r"([a-z][a-z0-9-]*)?", "'my-method'"),
        ("estimator", method.estimator, path, shown),
        ("map", method.map, path, shown),
        *(("name", a.name, algorithm, "'mine.sums/1'") for a in method.own_algorithms),
        *(("path", a.path, path, shown) for a in method.own_algorithms),
    ):
        if not isinstance(value, str) or not re.fullmatch(form, value):
            raise ValueError(f"{name}={value!r} of a method must look like {example}.")


@cache
def _discover() -> None:
    """Register the methods that installed packages name in their metadata."""
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            method = point.load()
            if not isinstance(method, Method):
                raise TypeError(
                    f"{point.value} is not a Method of skfedcal.methods.registry"
                )
            _add(method)
        except Exception as error:
            # One broken package must not stop all others.
            warnings.warn(
                f"The method {point.name!r} ({point.value}) of an installed package is "
                f"not available: {error!r}.",
                stacklevel=3,
            )


# Words of policies.


def _names_of(method: Method) -> list[str]:
    """Words for a method that users know: its own, its estimator's, its command's."""
    names = [method.word, method.estimator_name, method.command]
    return list(dict.fromkeys(name for name in names if name))


def policy_words() -> tuple[str, ...]:
    """Words by which a site may allow methods, one per method."""
    return tuple(m.word for m in methods() if m.kind != "service")


def allowed_by(word: str) -> frozenset[tuple[str, str]]:
    """Pairs of algorithm and family that a word of a policy allows.

    A word is that of a method ('temperature', 'FedTempCalibrator'), or the name of one
    algorithm ('temperature.posterior/2'). An empty family is any.

    Raises ValueError: For an unknown word, with the list of known ones.
    """
    for method in methods():
        if word.replace("-", "_") == method.word or word in _names_of(method):
            pairs = {(name, method.family) for name in method.algorithm_names}
            if method.kind == "calibrator":
                pairs |= {(HELD_BACK, ""), (GAIN, "")}
            return frozenset(pairs)
    if word in algorithms() or word in {a.name for a in OPT_IN}:
        return frozenset([(word, "")])
    old = _old_words().get(word)
    if old is not None:
        return frozenset([old])
    raise ValueError(
        f"There is no method {word!r}; known are {', '.join(policy_words())}, the "
        "names of estimators, and of algorithms such as 'temperature.posterior/2'."
    )


def replacement_of(word: str) -> str | None:
    """What to write instead of a word of policies that is deprecated; else None."""
    pair = _old_words().get(word)
    if pair is None:
        return None
    name, family = pair
    return next((m.word for m in BUILT_IN if family and m.family == family), name)


def _old_words() -> dict[str, tuple[str, str]]:
    """Class names, which were the words of policies until 0.1."""
    families = {path.partition(":")[2]: name for name, path in FAMILIES.items()}
    found: dict[str, tuple[str, str]] = {}
    for method in BUILT_IN:
        for algorithm in method.own_algorithms:
            old = algorithm.path.partition(":")[2]
            found[old] = (algorithm.name, "")
            if any("family" in case for case in algorithm.cases):
                pairs = families.items()
                found |= {f"{old}:{f}": (algorithm.name, name) for f, name in pairs}
    return found


def method_words(algorithm: str, family: str = "") -> tuple[str, ...]:
    """Words of the methods that use an algorithm."""
    return tuple(
        m.word
        for m in methods()
        if algorithm in m.algorithm_names and m.family in ("", family)
    )


def is_fit(algorithm: str) -> bool:
    """Whether an algorithm fits something, and is no evaluation as well."""
    kinds = {m.kind for m in methods() if algorithm in m.algorithm_names}
    return bool(kinds & {"calibrator", "training"}) and "evaluation" not in kinds


def estimator_modules() -> dict[str, list[str]]:
    """Modules of `skfedcal.methods` and the calibrators that they define."""
    found: dict[str, list[str]] = {}
    for method in _calibrators():
        module, _, name = method.estimator.partition(":")
        found.setdefault(module.removeprefix("skfedcal.methods."), []).append(name)
    return found


def _calibrators() -> Iterator[Method]:
    return (m for m in BUILT_IN if m.kind == "calibrator")

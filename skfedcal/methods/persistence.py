"""Fitted calibrators as JSON files, torch modules and ONNX models."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skfedcal._files import as_path, write_whole
from skfedcal._json import check_format, read_file, write_file
from skfedcal._numerics import ZERO_LOG
from skfedcal._params import FrozenParams, check_choice
from skfedcal._version import __version__
from skfedcal.federation.history import RoundHistory
from skfedcal.methods.graph import Graph, Value, log_softmax, softmax
from skfedcal.methods.registry import load_object, method_of, methods

if TYPE_CHECKING:
    import onnx
    import torch

    from skfedcal._typing import PathLike
    from skfedcal.contract import Array
    from skfedcal.methods.base import BaseCalibrator
    from skfedcal.privacy.events import PrivacyReport

_FORMAT = "skfedcal-calibrator"
_FORMAT_VERSION = 1
_COMMON = ("n_clients_", "n_rounds_", "n_features_in_")

# Attributes that files of earlier versions do not have.
_ADDED = {"expected_gain_": nan}

# Parameters that belong to a place, not to the map.
_NOT_SAVED = ("ledger", "runner")

# Defaults for these would claim a guarantee that the file does not state.
_GUARANTEE = ("eps", "delta", "unit", "adjacency", "trust", "secure")

_PRIVACY_MODELS = (
    "CentralDP",
    "DistributedDP",
    "LocalDP",
    "SecureAggregation",
    "SourceDP",
)


def save(estimator: Any, path: PathLike) -> None:
    """Write a fitted calibrator to `path`, atomically."""
    write_file(path, file_content(estimator))


def file_content(estimator: Any) -> dict[str, Any]:
    """Content of the file of a fitted calibrator."""
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "skfedcal": __version__,
        **_content(estimator),
    }


def _content(estimator: Any) -> dict[str, Any]:
    """Content of the file, as `_restore` reads it."""
    names = (*_COMMON, "improves_", *estimator._fitted_names)
    content = {
        "estimator": type(estimator).__name__,
        "params": {
            name: _encode(value)
            for name, value in estimator.get_params(deep=False).items()
            if name not in _NOT_SAVED
        },
        "classes": _encode(estimator.classes_),
        "columns": _encode(estimator._class_map.order),
        "fitted": {name: _encode(getattr(estimator, name)) for name in names},
        "privacy": _encode(asdict(estimator.privacy_)),
    }
    if hasattr(estimator, "feature_names_in_"):
        content["fitted"]["feature_names_in_"] = _encode(estimator.feature_names_in_)
    column = getattr(estimator, "_client_column", None)
    if column is not None:
        content["client_column"] = column
    return content


def load(path: PathLike) -> BaseCalibrator:
    """Read a calibrator that `save` has written.

    Parameters
    ----------
    path : str or path-like
        JSON file.

    Returns
    -------
    estimator : BaseCalibrator
        Fitted; predicts the same bits as the one that was saved. `history_`, `ledger`
        and `runner` are not part of the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from skfedcal import FedTempCalibrator, load
    >>> path = os.path.join(tempfile.mkdtemp(), "cal.json")
    >>> logits, labels = [[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]], [0, 1, 1]
    >>> FedTempCalibrator().fit(logits, labels).save(path)
    >>> type(load(path)).__name__
    'FedTempCalibrator'
    """
    path = as_path(path)
    return load_content(read_file(path), str(path))


def load_content(content: Any, where: str) -> BaseCalibrator:
    """Calibrator from the content of its file; ValueError names `where`."""
    what = "a saved calibrator of skfedcal"
    content = check_format(content, where, what, _FORMAT, _FORMAT_VERSION)
    try:
        return _restore(content)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError,
            RecursionError) as error:  # fmt: skip
        raise ValueError(f"{where} is damaged: {error!r}") from error


def _restore(content: dict[str, Any]) -> BaseCalibrator:
    from skfedcal.privacy import PrivacyReport

    name = content["estimator"]
    found = [m for m in methods("calibrator") if m.estimator_name == name]
    if not found:
        raise ValueError(f"unknown estimator {name!r}")
    cls: Any = found[0].load()
    params = {key: _decode(value) for key, value in content["params"].items()}
    estimator = cls(**params)
    estimator._validate_params()
    estimator._privacy_model()  # checks eps, delta and privacy
    classes, order = _decode(content["classes"]), _decode(content["columns"])
    if classes.ndim != 1 or np.unique(classes).tolist() != classes.tolist():
        raise ValueError("classes are not sorted and distinct")
    if sorted(order.tolist()) != list(range(len(classes))):
        raise ValueError("columns is not a permutation of the classes")
    estimator._restore_classes(classes, order)
    expected = (*_COMMON, "improves_", *cls._fitted_names)
    known = {*expected, "feature_names_in_"}
    for key, value in content["fitted"].items():
        if key not in known:
            raise ValueError(f"unknown attribute {key!r}")
        setattr(estimator, key, _decode(value))
    for key in _ADDED:
        if key in expected and key not in content["fitted"]:
            setattr(estimator, key, _ADDED[key])
    missing = [key for key in expected if key not in {*content["fitted"], *_ADDED}]
    if missing:
        raise ValueError(f"missing {missing}")
    if any(type(getattr(estimator, key)) is not int for key in _COMMON):
        raise ValueError(f"{_COMMON} are not whole numbers")
    if type(estimator.improves_) is not bool:
        raise ValueError(f"improves_={estimator.improves_!r} is not true or false")
    estimator._client_column = _client_column(content, estimator)
    if len(classes) - estimator.n_features_in_ not in (0, 1):
        raise ValueError("n_features_in_ does not match the classes")
    report = _decode(content["privacy"])
    for key in ("assumptions", "ledger_ids"):
        if not isinstance(report[key], list):
            raise ValueError(f"privacy has {key}={report[key]!r}")
        report[key] = tuple(report[key])
    estimator.privacy_ = PrivacyReport(**report)
    _check_report(report, PrivacyReport())
    estimator.history_, estimator.comparison_ = RoundHistory(), None
    estimator._check_restored()
    return estimator


def _client_column(content: dict[str, Any], estimator: Any) -> str | None:
    """Column that named the clients in `fit`; files of earlier versions have none."""
    column = content.get("client_column")
    names = getattr(estimator, "feature_names_in_", ())
    if column is not None and (not isinstance(column, str) or column in names):
        raise ValueError(f"client_column={column!r} is not a column besides features")
    return column


def _check_report(report: dict[str, Any], default: PrivacyReport) -> None:
    """Raise ValueError unless the fields of a privacy report are complete and valid."""
    missing = [key for key in _GUARANTEE if key not in report]
    if missing:
        raise ValueError(f"privacy lacks {missing}")
    if report["unit"] not in ("client", "example"):
        raise ValueError(f"privacy has unit={report['unit']!r}")
    for key, value in report.items():
        usual = type(getattr(default, key))
        if key == "mu" or usual is float:
            right = (key == "mu" and value is None) or _is_size(value)
        elif usual is dict:
            right = all(v is None or _is_size(v) for v in value.values())
        elif usual is tuple:
            right = all(isinstance(v, str) for v in value)
        else:
            right = type(value) is usual and (usual is not int or value >= 0)
        if not right:
            raise ValueError(f"privacy has {key}={value!r}")


def _is_size(value: object) -> bool:
    """Return whether it is a number from 0 to inf, and not NaN."""
    return isinstance(value, float) and value >= 0


def _encode(value: Any) -> Any:
    """JSON form of a parameter or attribute; floats keep every bit."""
    if isinstance(value, np.ndarray):
        kind = "str" if value.dtype.kind in "US" else value.dtype.str
        if value.dtype.kind == "O":
            kind = "object"
        return {"array": _encode(value.ravel().tolist()), "dtype": kind,
                "shape": list(value.shape)}  # fmt: skip
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, float) and not isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, FrozenParams):
        inner = {k: _encode(v) for k, v in value.get_params().items()}
        return {"object": type(value).__name__, "params": inner}
    if hasattr(value, "_fitted_names"):  # the calibrator that another one has chosen
        return {"calibrator": _content(value)}
    if isinstance(value, (list, tuple, range)):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _encode(v) for k, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.random.RandomState):
        return None
    if hasattr(value, "__array__"):  # a pandas index or series of class labels
        return _encode(np.asarray(value))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"array", "dtype", "shape"}:
        flat = _decode(value["array"])
        dtype = {"str": None, "object": object}.get(value["dtype"], value["dtype"])
        return np.array(flat, dtype=dtype).reshape(value["shape"])
    if set(value) == {"float"}:
        return float(value["float"])
    if set(value) == {"calibrator"}:
        return _restore(value["calibrator"])
    if set(value) == {"object", "params"}:
        from skfedcal import privacy

        if value["object"] not in _PRIVACY_MODELS:
            raise ValueError(f"unknown object {value['object']!r}")
        return getattr(privacy, value["object"])(**_decode(value["params"]))
    return {k: _decode(v) for k, v in value.items()}


_OUTPUTS = ("proba", "log_proba", "label")
_DTYPES = ("float32", "float64")


class ExportMixin:
    """Mixin that saves and exports a calibrator."""

    classes_: Array

    def save(self, path: PathLike) -> None:
        """Write the fitted calibrator as JSON, without pickle.

        Parameters
        ----------
        path : str or path-like
            File to write; replaced as a whole or not at all.

        See Also
        --------
        skfedcal.load : Reads it.
        skfedcal.export.json_schema : Schema of the file.
        """
        check_is_fitted(self)
        save(self, path)

    def to_torch(
        self, output: Literal["proba", "log_proba", "label"] = "proba"
    ) -> torch.nn.Module:
        """Convert the fitted map to a torch module, which can be appended to a network.

        Parameters
        ----------
        output : {'proba', 'log_proba', 'label'}, default='proba'
            Calibrated probabilities, their logarithm (for a loss), or the position in
            `classes_` of the most probable class.

        Returns
        -------
        module : torch.nn.Module
            Takes a tensor of rows of scores as `predict_proba` does, and returns one
            column per entry of `classes_`, in the type of its input. It has no
            parameters to train. Gradients flow through it; those of a table are 0.

        Notes
        -----
        It computes in float64 and agrees with `predict_proba` to rounding; after
        ``module.float()``, for devices that have no float64, to about 1e-6. It stays at
        float32 if the rest of a network is converted by ``half()``. Where a score lies
        on the edge of a bin to the last digit, it may fall on the other side. Scores
        are not validated: a row with nan or +inf comes out as nan.

        ``torch.export.export`` takes the module; ``torch.jit.script`` does not.

        Examples
        --------
        >>> import torch
        >>> from skfedcal import FedTempCalibrator
        >>> cal = FedTempCalibrator().fit([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]],
        ...                               [0, 1, 1])
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 2), cal.to_torch())
        >>> net(torch.zeros(3, 5)).sum(dim=1).detach()
        tensor([1., 1., 1.])
        """
        check_is_fitted(self)
        check_choice("output", output, _OUTPUTS)
        try:
            from skfedcal.export.torch_module import Calibration
        except ImportError as error:
            raise ImportError(
                'to_torch needs torch. Run: pip install "skfedcal[torch]"'
            ) from error

        found = describe(self)
        return Calibration(found.graph, found.outputs[output].number)

    def to_onnx(
        self,
        path: PathLike | None = None,
        *,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> onnx.ModelProto:
        """Convert the fitted map to an ONNX model.

        Parameters
        ----------
        path : str or path-like, default=None
            File to write as well; replaced as a whole or not at all.
        dtype : {'float32', 'float64'}, default='float32'
            Type of the input 'scores' and of the output 'probabilities'.

        Returns
        -------
        model : onnx.ModelProto
            With the input 'scores', rows as `predict_proba` takes them, and the outputs
            'label' and 'probabilities', one column per entry of `classes_`. Labels that
            are neither numbers nor texts become texts. The metadata contain the
            estimator and its privacy guarantee.

        Notes
        -----
        The model computes in float64 whatever its input, with opset 18, and agrees with
        `predict_proba` to rounding. Where a score lies on the edge of a bin to the last
        digit, it may fall on the other side. Scores are not validated: a row with nan
        or +inf has probabilities of nan.

        Examples
        --------
        >>> from skfedcal import FedTempCalibrator
        >>> cal = FedTempCalibrator().fit([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]],
        ...                               [0, 1, 1])
        >>> model = cal.to_onnx()
        >>> [output.name for output in model.graph.output]
        ['label', 'probabilities']
        """
        check_is_fitted(self)
        check_choice("dtype", dtype, _DTYPES)
        path = None if path is None else as_path(path)
        try:
            import onnx  # noqa: F401
        except ImportError as error:
            raise ImportError(
                'to_onnx needs onnx. Run: pip install "skfedcal[onnx]"'
            ) from error
        from skfedcal.export.onnx_model import to_model

        found = describe(self)
        names = {"label": "label", "probabilities": "proba"}
        model = to_model(
            found.graph,
            {name: found.outputs[own].number for name, own in names.items()},
            self.classes_,
            dtype,
            _notes(self),
        )
        if path is not None:
            content = model.SerializeToString()
            write_whole(path, lambda stream: stream.write(content))
        return model


def _notes(calibrator: Any) -> dict[str, str]:
    """Metadata of an exported model."""
    from skfedcal._version import __version__

    report = calibrator.privacy_
    return {
        "skfedcal": __version__,
        "estimator": type(calibrator).__name__,
        "input_type": calibrator.input_type,
        "privacy": repr(report),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """Graph of a calibrator, and its outputs.

    graph: All operations, including those of the outputs.
    outputs: 'proba', 'log_proba' and 'label', the number of the most probable class.
    """

    graph: Graph
    outputs: dict[str, Value]


def describe(calibrator: Any) -> Description:
    """Build the graph that computes `predict_proba` of a fitted calibrator."""
    graph = Graph(calibrator.n_features_in_)
    n_classes = len(calibrator.classes_)
    if calibrator._rows == "given":
        return _describe_scores(calibrator, graph)
    given = _as_logits(graph, n_classes, calibrator.input_type)
    # In the type of the input, as `predict_proba` does it: bins have sharp edges.
    logits = (given - given.max()).double()
    out = logits if n_classes == 1 else _mapped(calibrator, logits)
    if not calibrator._class_map.in_order:
        out = out.columns(calibrator._class_map.order)
    if getattr(calibrator, "normalize", None) == "none":
        outputs = {"proba": out.exp(), "log_proba": out}
    else:
        outputs = {"proba": softmax(out), "log_proba": log_softmax(out)}
    return Description(graph, {**outputs, "label": out.argmax()})


def _describe_scores(calibrator: Any, graph: Graph) -> Description:
    """Graph of a map that takes scores as they are given and returns probabilities."""
    scores = graph.input().double()
    scores = scores + scores.max() * 0.0  # nan where the largest is not finite
    if len(calibrator.classes_) == 1:
        proba = scores.columns([0]) * 0.0 + 1.0
    else:
        proba = calibrator._proba_formula(scores)
    if not calibrator._class_map.in_order:
        proba = proba.columns(calibrator._class_map.order)
    outputs = {"proba": proba, "log_proba": proba.log(), "label": proba.argmax()}
    return Description(graph, outputs)


def _mapped(calibrator: BaseCalibrator, logits: Value) -> Value:
    """Calibrated logits, or those of the input where the map is not used."""
    used = calibrator._map_is_used
    inner: Any = calibrator
    # By exact class: a subclass may have changed its map.
    while (method := method_of(type(inner))) is not None and method.word == "auto":
        inner = inner.calibrator_
    if method is None or not method.map:
        raise TypeError(
            f"{type(inner).__name__} cannot be exported: its map is not registered. "
            "Name it in the entry of skfedcal.methods.register_method, or use "
            "predict_proba instead."
        )
    if used:
        value: Value = load_object(method.map)(inner, logits)
        return value
    if method.word == "accuracy_temperature" and calibrator.privacy_.private:
        return logits / float(inner.prior_temperature)
    plain = getattr(inner, "normalize", None) == "none"
    return log_softmax(logits) if plain else logits


def _as_logits(graph: Graph, n_classes: int, input_type: str) -> Value:
    """Logits with one column per class, in the type of the input."""
    scores = graph.input()
    if input_type == "proba":
        if graph.n_columns == n_classes - 1:
            scores = (graph.constant(1.0, given=True) - scores.sum()).beside(scores)
        # Logarithms of single precision are off by several digits in some runtimes.
        logs = scores.positive().double().log().rounded()
        return _fill_zeros(logs, scores.equals(graph.constant(0.0, given=True)))
    if input_type == "log_proba":
        return _fill_zeros(scores, scores.equals(graph.constant(-np.inf, given=True)))
    if graph.n_columns == n_classes:
        return scores
    if n_classes == 2:
        half = scores / graph.constant(2.0, given=True)
        return (-half).beside(half)
    # The largest score is finite, others need not be.
    zero = scores.max() * graph.constant(0.0, given=True)
    return zero.beside(scores)


def _fill_zeros(logs: Value, zero: Value) -> Value:
    """Replace the logarithm of probabilities of 0, as `_numerics.fill_zeros`."""
    least = logs.graph.constant(ZERO_LOG, given=True)
    return zero.choose(zero.choose(least, logs).min().at_most(least), logs)

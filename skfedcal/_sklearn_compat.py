"""The only file that may import private or version-dependent scikit-learn names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Protocol, TypeVar

from sklearn import get_config
from sklearn.base import clone
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.metadata_routing import _routing_enabled as routing_enabled
from sklearn.utils.metaestimators import _safe_split as safe_split
from sklearn.utils.validation import _check_method_params as check_method_params
from sklearn.utils.validation import _num_samples as num_samples

__all__ = [
    "HAS_CALLBACKS",
    "CallbackSupportMixin",
    "CountsClones",
    "HasMethods",
    "Interval",
    "KnownParams",
    "StrOptions",
    "check_method_params",
    "copy_to_fit",
    "fit_context",
    "fit_subtask",
    "has_callbacks",
    "num_samples",
    "routing_enabled",
    "safe_split",
    "undone_on_error",
]

try:  # scikit-learn >= 1.9
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback._callback_support import (
        callback_management_context as callbacks_torn_down,
    )

    HAS_CALLBACKS = True
except ImportError:  # scikit-learn 1.6 - 1.8
    HAS_CALLBACKS = False

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stand-in without callbacks; the context below does nothing."""

        def _init_callback_context(self, **_):
            return _NullContext()

    class _NullContext:
        def subcontext(self, **_):
            return self

        def call_on_fit_task_begin(self, **_):
            return self

        def call_on_fit_task_end(self, **_):
            return False

    callbacks_torn_down = nullcontext


Method = TypeVar("Method", bound=Callable[..., Any])


class _SameMethod(Protocol):
    """Decorator that leaves the type of a method as it is."""

    def __call__(self, method: Method, /) -> Method: ...


def fit_context() -> _SameMethod:
    """Validate the parameters before a fit, and tear callbacks down after it.

    Like scikit-learn's `_fit_context(prefer_skip_nested_validation=False)`. Without
    callbacks it enters no context: contexts take a tenth of a small fit.
    """

    def decorate(fit: Any) -> Any:
        @functools.wraps(fit)
        def wrapper(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            if not get_config()["skip_parameter_validation"]:
                estimator._validate_params()
            try:
                return fit(estimator, *args, **kwargs)
            finally:
                if "_callback_fit_ctx" in vars(estimator):
                    with callbacks_torn_down(estimator):
                        pass

        return wrapper

    return decorate


def has_callbacks(estimator: Any) -> bool:
    """Whether callbacks of scikit-learn watch the fit of an estimator."""
    return bool(getattr(estimator, "_skl_callbacks", None))


class KnownParams:
    """Remember the parameters of a class, which scikit-learn reads from its signature.

    Reading it at every fit and every `get_params` takes longer than a small fit's sums.
    """

    _param_names: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]

    @classmethod
    def _get_param_names(cls):
        if "_param_names" not in vars(cls):  # a subclass may have others
            cls._param_names = tuple(super()._get_param_names())  # type: ignore[misc]
        return list(cls._param_names)

    def _validate_params(self):
        cls = type(self)
        if "_defaults" not in vars(cls):
            known = inspect.signature(cls.__init__).parameters
            names = self._get_param_names()
            cls._defaults = {name: known[name].default for name in names}
        # Defaults are valid, and most parameters have them.
        changed = {
            name: value
            for name, default in cls._defaults.items()
            if (value := getattr(self, name)) is not default
        }
        if changed:
            validate_parameter_constraints(
                self._parameter_constraints,  # type: ignore[attr-defined]
                changed,
                caller_name=cls.__name__,
            )


@contextmanager
def fit_subtask(context, name, owner, estimator):
    """Show the fit of an inner `estimator` to the callbacks of `owner`."""
    step = context.subcontext(task_name=name)
    # An estimator without support for callbacks goes without; no warning is due.
    supported = hasattr(estimator, "set_callbacks")
    with step.propagate_callback_context(estimator) if supported else nullcontext():
        step.call_on_fit_task_begin(estimator=owner)
        yield
        step.call_on_fit_task_end(estimator=owner)


class CountsClones:
    """Count the clones of an estimator, and number each clone.

    Searches, cross-validation and ensembles fit one `sklearn.base.clone` for each
    candidate, fold or member. The numbers are attributes, so that they reach worker
    processes.
    """

    # Clones that were made of this estimator.
    _n_clones = 0
    # 0: not a clone. A clone of the third clone is at least a third clone.
    _clone_number = 0

    def __sklearn_clone__(self):
        copy = super().__sklearn_clone__()  # type: ignore[misc]
        self._n_clones += 1
        copy._clone_number = max(self._clone_number, self._n_clones)
        return copy


def copy_to_fit(estimator):
    """Clone an estimator to fit the clone in its place.

    The clone and its nested estimators get the clone numbers of the originals: see
    `CountsClones`.
    """
    copy = clone(estimator)
    originals = {"": estimator, **estimator.get_params()}
    for name, part in {"": copy, **copy.get_params()}.items():
        original = originals.get(name)
        if isinstance(original, CountsClones) and part is not original:
            part._clone_number = original._clone_number
            original._n_clones -= 1
            if not original._n_clones:
                del original._n_clones  # a fit changes no parameter of its estimator
    return copy


class undone_on_error:
    """Restore the attributes of an estimator when its fit fails or is interrupted."""

    def __init__(self, estimator):
        self._estimator = estimator

    def __enter__(self):
        self._before = dict(vars(self._estimator))

    def __exit__(self, kind, error, traceback):
        if kind is None:
            return
        estimator, before = self._estimator, self._before
        for name in set(vars(estimator)) - set(before):
            if "callback" not in name:  # scikit-learn tears these down afterwards
                delattr(estimator, name)
        for name, value in before.items():
            setattr(estimator, name, value)

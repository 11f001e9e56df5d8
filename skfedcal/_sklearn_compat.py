"""The only file that may import private or version-dependent scikit-learn names."""

import functools
import sys
from types import FrameType

from sklearn.base import _fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

try:  # scikit-learn >= 1.9
    from sklearn.callback import CallbackSupportMixin

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


__all__ = [
    "HAS_CALLBACKS",
    "CallbackSupportMixin",
    "HasMethods",
    "Interval",
    "StrOptions",
    "fit_context",
    "inside_model_selection",
]

# `_fit_context` validates the parameters and, since 1.9, tears callbacks down.
fit_context = functools.partial(_fit_context, prefer_skip_nested_validation=False)


def inside_model_selection():
    """Tell whether a search or cross-validation of scikit-learn is calling."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection"):
            return True
        frame = frame.f_back
    return False

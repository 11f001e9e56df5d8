"""Data to try things on: images and tables, before and after a shift."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.datasets._features import feature_shift
    from skfedcal.datasets._make_shift import make_shift
    from skfedcal.datasets._resample import covariate_shift, label_shift
    from skfedcal.datasets.corruptions import CORRUPTIONS, corrupt

__all__ = [
    "CORRUPTIONS",
    "corrupt",
    "covariate_shift",
    "feature_shift",
    "label_shift",
    "make_shift",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_features": ["feature_shift"],
        "_make_shift": ["make_shift"],
        "_resample": ["covariate_shift", "label_shift"],
        "corruptions": ["CORRUPTIONS", "corrupt"],
    },
)

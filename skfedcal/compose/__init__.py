"""Classifiers and calibrators together, and fits over sites with their evidence."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.compose._calibrated_classifier import FederatedCalibratedClassifier
    from skfedcal.compose._logit_transformer import LogitTransformer
    from skfedcal.compose._torch_logits import TorchLogits
    from skfedcal.compose.site_results import SiteResult, fit_sites, verify_result

__all__ = [
    "FederatedCalibratedClassifier",
    "LogitTransformer",
    "SiteResult",
    "TorchLogits",
    "fit_sites",
    "verify_result",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_calibrated_classifier": ["FederatedCalibratedClassifier"],
        "_logit_transformer": ["LogitTransformer"],
        "_torch_logits": ["TorchLogits"],
        "site_results": ["SiteResult", "fit_sites", "verify_result"],
    },
)

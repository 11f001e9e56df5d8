"""Federated training of torch modules, and classifiers from class statistics."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.training._classifier import FedAvgClassifier
    from skfedcal.training._context import Context
    from skfedcal.training._correction import Scaffold
    from skfedcal.training._gaussian_head import FedGaussianHead
    from skfedcal.training._losses import (
        CrossEntropy,
        FedLC,
        Focal,
        LogitAdjusted,
        Margin,
    )
    from skfedcal.training._models import FCRCNN, MLP, CharLSTM, SmallCNN
    from skfedcal.training._monitor import RoundScores
    from skfedcal.training._penalties import DCA, MDCA, MMCE, MMD, NonUniform
    from skfedcal.training._recipes import (
        ccvr,
        fedlc,
        fedprox,
        fl_fcr,
        moon,
        nucfl,
    )
    from skfedcal.training._resnet import ResNet18
    from skfedcal.training._statistics import ClassStatistics
    from skfedcal.training._ties import Contrastive, Proximal

__all__ = [  # noqa: RUF022 - a class may be an acronym
    "CharLSTM",
    "ClassStatistics",
    "Context",
    "Contrastive",
    "CrossEntropy",
    "DCA",
    "FCRCNN",
    "FedAvgClassifier",
    "FedGaussianHead",
    "FedLC",
    "Focal",
    "LogitAdjusted",
    "MDCA",
    "MLP",
    "MMCE",
    "MMD",
    "Margin",
    "NonUniform",
    "Proximal",
    "ResNet18",
    "RoundScores",
    "Scaffold",
    "SmallCNN",
    "ccvr",
    "fedlc",
    "fedprox",
    "fl_fcr",
    "moon",
    "nucfl",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_classifier": ["FedAvgClassifier"],
        "_context": ["Context"],
        "_correction": ["Scaffold"],
        "_gaussian_head": ["FedGaussianHead"],
        "_losses": ["CrossEntropy", "FedLC", "Focal", "LogitAdjusted", "Margin"],
        "_models": ["FCRCNN", "MLP", "CharLSTM", "SmallCNN"],
        "_monitor": ["RoundScores"],
        "_penalties": ["DCA", "MDCA", "MMCE", "MMD", "NonUniform"],
        "_recipes": ["ccvr", "fedlc", "fedprox", "fl_fcr", "moon", "nucfl"],
        "_resnet": ["ResNet18"],
        "_statistics": ["ClassStatistics"],
        "_ties": ["Contrastive", "Proximal"],
    },
)

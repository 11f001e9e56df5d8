"""Federated training of torch modules, and classifiers from class statistics."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.training._classifier import FedAvgClassifier
    from skfedcal.training._fedavg import RoundScores
    from skfedcal.training._gaussian_head import FedGaussianHead
    from skfedcal.training._local_training import Scaffold
    from skfedcal.training._losses import (
        DCA,
        MDCA,
        MMCE,
        MMD,
        Contrastive,
        CrossEntropy,
        FedLC,
        Focal,
        LogitAdjusted,
        Margin,
        NonUniform,
        Proximal,
    )
    from skfedcal.training._models import FCRCNN, MLP, CharLSTM, ResNet18, SmallCNN
    from skfedcal.training._objective import Context
    from skfedcal.training._recipes import (
        ccvr,
        fedlc,
        fedprox,
        fl_fcr,
        moon,
        nucfl,
    )
    from skfedcal.training.class_statistics import ClassStatistics

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
        "_fedavg": ["RoundScores"],
        "_gaussian_head": ["FedGaussianHead"],
        "_local_training": ["Scaffold"],
        "_losses": [
            "Contrastive",
            "CrossEntropy",
            "DCA",
            "FedLC",
            "Focal",
            "LogitAdjusted",
            "MDCA",
            "MMCE",
            "MMD",
            "Margin",
            "NonUniform",
            "Proximal",
        ],
        "_models": ["CharLSTM", "FCRCNN", "MLP", "ResNet18", "SmallCNN"],
        "_objective": ["Context"],
        "_recipes": ["ccvr", "fedlc", "fedprox", "fl_fcr", "moon", "nucfl"],
        "class_statistics": ["ClassStatistics"],
    },
)

"""Data for experiments: public data sets on disk, and data before and after a shift.

Examples
--------
`CORRUPTIONS` has the kinds of `corrupt`, each with the group that it belongs to.

>>> from skfedcal.datasets import CORRUPTIONS
>>> len(CORRUPTIONS), CORRUPTIONS["snow"]
(15, 'weather')
"""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.datasets._adult import load_adult
    from skfedcal.datasets._cifar import load_cifar10, load_cifar100
    from skfedcal.datasets._leaf import load_femnist, load_shakespeare
    from skfedcal.datasets._mnist import load_emnist, load_mnist
    from skfedcal.datasets._shifts import (
        covariate_shift,
        feature_shift,
        label_shift,
        make_shift,
    )
    from skfedcal.datasets._split_clients import split_clients
    from skfedcal.datasets._svhn import load_svhn
    from skfedcal.datasets._tiny_imagenet import load_tiny_imagenet
    from skfedcal.datasets.corruptions import CORRUPTIONS, corrupt

__all__ = [
    "CORRUPTIONS",
    "corrupt",
    "covariate_shift",
    "feature_shift",
    "label_shift",
    "load_adult",
    "load_cifar10",
    "load_cifar100",
    "load_emnist",
    "load_femnist",
    "load_mnist",
    "load_shakespeare",
    "load_svhn",
    "load_tiny_imagenet",
    "make_shift",
    "split_clients",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_adult": ["load_adult"],
        "_cifar": ["load_cifar10", "load_cifar100"],
        "_leaf": ["load_femnist", "load_shakespeare"],
        "_mnist": ["load_emnist", "load_mnist"],
        "_shifts": ["covariate_shift", "feature_shift", "label_shift", "make_shift"],
        "_split_clients": ["split_clients"],
        "_svhn": ["load_svhn"],
        "_tiny_imagenet": ["load_tiny_imagenet"],
        "corruptions": ["CORRUPTIONS", "corrupt"],
    },
)

"""Networks: parameter counts of the papers, shapes, features, and maps over clients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402

from skfedcal.training import (  # noqa: E402
    FCRCNN,
    MLP,
    CharLSTM,
    FedAvgClassifier,
    ResNet18,
    SmallCNN,
)
from skfedcal.training._models import MODELS, build  # noqa: E402
from skfedcal.training.modules import (  # noqa: E402
    Network,
    _convolution_work,
    auto_cohort,
    image_shape,
)

IMAGES = ["cnn", "fcr_cnn", "resnet18"]


def n_params(module):
    return sum(p.numel() for p in module.parameters())


def resnet_by_hand(stem, channels, n_classes):
    """Weights of 3x3 convolutions, shortcuts, norms and head, block by block."""
    total = channels * 64 * stem**2 + 2 * 64
    inside = 64
    for outside in (64, 128, 256, 512):
        for block in range(2):
            total += 9 * inside * outside + 9 * outside**2 + 4 * outside
            if block == 0 and inside != outside:
                total += inside * outside + 2 * outside
            inside = outside
    return total + 512 * n_classes + n_classes


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (SmallCNN((28, 28), 10), 1_663_370),  # McMahan et al., section 3
        (SmallCNN((28, 28), 62, hidden=2048), 6_603_710),  # LEAF, FEMNIST
        (FCRCNN((3, 32, 32), 10), 7_281_802),
        (ResNet18((3, 224, 224), 10), 11_181_642),  # torchvision's, with its stem
        (ResNet18((3, 32, 32), 10), 11_181_642 - 3 * 64 * (49 - 9)),
        (ResNet18((1, 28, 28), 10), resnet_by_hand(3, 1, 10)),
        (MLP((784,), 10), 784 * 512 + 512 * 256 + 256 * 128 + 128 * 64 + 640 + 970),
        (MLP((12,), 2, hidden=()), 26),
        (CharLSTM((80,), 80), 640 + 4 * 256 * (8 + 3 * 256) + 16 * 256 + 257 * 80),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parameter_counts(module, expected):
    assert n_params(module) == expected


def test_resnet_counts_follow_from_its_blocks():
    assert resnet_by_hand(7, 3, 10) == 11_181_642
    assert resnet_by_hand(3, 3, 10) == 11_173_962


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize(
    "shape", [(28, 28), (29, 17), (3, 33, 32), (15, 13, 3), (784,), (64,), (192,)]
)
def test_images_of_any_shape(name, shape):
    module = build(name, shape, 60).eval()
    out = module(torch.randn(2, *shape))
    assert out.shape == (2, 60)
    assert (out < 0).any()  # logits; a chance of 2**-60 to fail


@pytest.mark.parametrize("name", sorted(MODELS))
def test_head_is_the_last_layer_and_features_are_its_input(name):
    shape = (9,) if name == "char_lstm" else (16, 16)
    module = build(name, shape, 5).eval()
    rows = torch.zeros(3, *shape)
    rows = rows.long() if name == "char_lstm" else rows + torch.rand(rows.shape)
    assert isinstance(module.head, nn.Linear)
    features = module.features(rows)
    assert features.shape == (3, module.head.in_features)
    torch.testing.assert_close(module.head(features), module(rows))
    mixing = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d | nn.Dropout)]
    assert not mixing


@pytest.mark.parametrize("name", IMAGES)
def test_channels_first_last_and_flat_are_the_same_image(name):
    torch.manual_seed(0)
    image = torch.randn(2, 3, 16, 16)
    modules = [build(name, shape, 4).eval() for shape in ((3, 16, 16), (16, 16, 3))]
    modules.append(build(name, (768,), 4).eval())
    for other in modules[1:]:
        other.load_state_dict(modules[0].state_dict())
    expected = modules[0](image)
    torch.testing.assert_close(modules[1](image.movedim(1, -1)), expected)
    torch.testing.assert_close(modules[2](image.flatten(1)), expected)


def test_stem_follows_the_size_of_the_image():
    def first(shape, **how):
        return ResNet18(shape, 2, width=8, **how).body[1].kernel_size

    assert first((3, 64, 64)) == (3, 3)
    assert first((3, 65, 64)) == (7, 7)
    assert first((3, 32, 32), stem="large") == (7, 7)
    with pytest.raises(ValueError, match="'auto', 'small' or 'large'"):
        first((3, 32, 32), stem="tiny")


@pytest.mark.parametrize(
    ("side", "stem", "last"), [(32, "small", 4), (33, "small", 5), (64, "large", 2)]
)
def test_stages_halve_the_image(side, stem, last):
    module = ResNet18((side, side), 2, stem=stem, width=4)
    maps = module.body[:-2](torch.zeros(1, side, side))
    assert maps.shape == (1, 32, last, last)


def test_group_norm_keeps_rows_apart():
    module = ResNet18((8, 8), 3, width=8).train()
    rows = torch.randn(4, 8, 8)
    torch.testing.assert_close(module(rows)[:1], module(rows[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((784,), ((1, 28, 28), False)),
        ((3072,), ((3, 32, 32), False)),
        ((28, 20), ((1, 28, 20), False)),
        ((1, 28, 28), ((1, 28, 28), False)),
        ((28, 28, 1), ((1, 28, 28), True)),
        ((3, 32, 3), ((3, 32, 3), False)),
        ((64, 64, 3), ((3, 64, 64), True)),
    ],
)
def test_shapes_are_read_as_images(shape, expected):
    assert tuple(image_shape(shape, smallest=1)) == expected


def test_what_cannot_be_built_says_why():
    with pytest.raises(ValueError, match="module='vgg' is unknown; pass one of"):
        build("vgg", (8, 8), 2)
    with pytest.raises(
        ValueError, match="Rows of 63 numbers do not form a square image"
    ):
        build("cnn", (63,), 2)
    with pytest.raises(ValueError, match="too small for this network, which needs 4"):
        build("cnn", (3, 3), 2)
    with pytest.raises(ValueError, match="are not images"):
        build("cnn", (2, 3, 4, 5), 2)
    with pytest.raises(ValueError, match="needs rows of tokens"):
        build("char_lstm", (8, 8), 2)
    with pytest.raises(TypeError, match="module='mlp' does not take these arguments"):
        build("mlp", (8,), 2, depth=3)


@pytest.mark.parametrize(
    ("name", "shape", "params"),
    [
        ("mlp", (6,), {"hidden": (5,)}),
        ("cnn", (8, 8), {"hidden": 6, "channels": (2, 3)}),
        ("resnet18", (16, 16), {"width": 4}),
        ("char_lstm", (5,), {"hidden": 6, "n_tokens": 4}),
    ],
)
def test_a_cohort_at_once_is_each_client_alone(name, shape, params):
    torch.manual_seed(0)
    module = build(name, shape, 3, **params)
    start = dict(module.named_parameters())
    stacked = {k: torch.stack([p, 1.1 * p]).detach() for k, p in start.items()}
    rows = torch.rand(2, 4, *shape)
    rows = (rows * 4).long() if name == "char_lstm" else rows

    def value(own, x):
        return functional_call(module, own, (x,)).square().sum()

    found = vmap(grad(value))(stacked, rows)
    for k in range(2):
        alone = grad(value)({name: p[k] for name, p in stacked.items()}, rows[k])
        for name_, slope in alone.items():
            torch.testing.assert_close(found[name_][k], slope, rtol=1e-3, atol=1e-4)


def two_convolutions(depth, side, first, second):
    return nn.Sequential(
        nn.Conv2d(depth, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (side // 4) ** 2, 10),
    )


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (two_convolutions(3, 32, 8, 16), (3, 32, 32)),
        (ResNet18((3, 16, 16), 10, width=4), (3, 16, 16)),
        (nn.Sequential(nn.Conv2d(4, 8, 3, 2, dilation=2, groups=2)), (4, 12, 12)),
        (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, groups=2)), (4, 5, 5)),
        (nn.Sequential(nn.Conv1d(2, 5, 4)), (2, 9)),
        (MLP((6,), 10), (6,)),
    ],
    ids=["cnn", "resnet18", "dilated", "transposed", "1d", "mlp"],
)
def test_the_work_of_convolutions_is_what_torch_counts(module, shape):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *shape))
    counted = counter.get_flop_counts()["Global"].get(torch.ops.aten.convolution, 0)
    kinds = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
    n_layers = sum(isinstance(part, kinds) for part in module.modules())
    # torch counts a multiplication and an addition.
    assert _convolution_work(module, shape) * max(n_layers, 1) == counted / 2
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize(
    ("module", "shape", "n_rows", "together"),
    [
        (MLP((64,), 10, hidden=(64,)), (64,), 10_000, True),
        (MLP((64,), 10), (64,), 10, False),
        (two_convolutions(1, 8, 8, 16), (1, 8, 8), 32, True),
        (two_convolutions(3, 32, 8, 16), (3, 32, 32), 10, True),
        (two_convolutions(3, 32, 8, 16), (3, 32, 32), 32, False),
        (two_convolutions(3, 32, 16, 32), (3, 32, 32), 10, False),
        (ResNet18((3, 16, 16), 10, width=4), (3, 16, 16), 32, True),
        (CharLSTM((5,), 10, hidden=6, n_tokens=4), (5,), 10, False),
    ],
)
def test_a_cohort_is_trained_at_once_where_calls_cost_more_than_arithmetic(
    module, shape, n_rows, together
):
    found = [auto_cohort(Network(module), shape, n_rows) for _ in range(2)]
    assert found == [1 << 30 if together else 1] * 2


def test_an_embedding_before_convolutions_is_counted_on_tokens():
    class Texts(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.conv = nn.Embedding(7, 4), nn.Conv1d(4, 3, 2)

        def forward(self, x):
            return self.conv(self.table(x).movedim(-1, 1)).mean(-1)

    # Three channels at four places, each from 4 x 2 numbers.
    assert _convolution_work(Texts(), (5,)) == 3 * 4 * 4 * 2


def test_auto_trains_a_large_convolution_client_by_client():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(96, 3, 32, 32)).astype(np.float32)
    fits = []
    for cohort_size in ("auto", 1):
        torch.manual_seed(0)
        module = two_convolutions(3, 32, 8, 16)
        clf = FedAvgClassifier(
            module, n_rounds=1, random_state=0, cohort_size=cohort_size
        )
        clf.fit(X, np.arange(96) % 10, client_ids=np.arange(96) % 3)
        fits.append(clf.predict_proba(X))
    np.testing.assert_array_equal(*fits)


def test_names_build_from_the_shape_of_the_data():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = rng.normal(size=(40, 64)).astype(np.float32)
    for name, rows in (("cnn", X), ("cnn", X.reshape(40, 8, 8)), ("linear", X)):
        params = {} if name == "linear" else {"hidden": 4, "channels": (2, 2)}
        clf = FedAvgClassifier(name, module_params=params, n_rounds=1, random_state=0)
        clf.fit(rows, y, client_ids=np.arange(40) % 4)
        assert clf.predict_proba(rows).shape == (40, 2)
    tokens = rng.integers(0, 9, (40, 6))
    small = {"hidden": 4, "n_tokens": 9}
    clf = FedAvgClassifier("char_lstm", module_params=small, n_rounds=1, random_state=0)
    assert clf.fit(tokens, y).transform(tokens).shape == (40, 4)

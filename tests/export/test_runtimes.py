"""Exported maps give what `predict_proba` gives, in torch and in onnxruntime."""

import copy
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from skfedcal import (
    FedAccTempCalibrator,
    FedBinCalibrator,
    FedHistogramCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
)
from skfedcal.methods import registry

torch = pytest.importorskip("torch")

TOLERANCE = 1e-6
pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]


def in_torch(cal, rows, output="proba"):
    with torch.no_grad():
        return cal.to_torch(output)(torch.tensor(rows)).numpy()


def in_onnx(cal, rows):
    """Labels and probabilities of onnxruntime."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    model = cal.to_onnx(dtype=rows.dtype.name).SerializeToString()
    session = runtime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"]
    )
    assert [o.name for o in session.get_outputs()] == ["label", "probabilities"]
    return session.run(None, {"scores": rows})


def clear(proba):
    """Rows whose most probable class leads by more than rounding."""
    top = np.sort(proba, axis=1)[:, -2:]
    return top[:, 1] - top[:, 0] > TOLERANCE


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_torch_equals_predict_proba(fitted, hard, name, n_classes, dtype):
    cal, rows = fitted(name, n_classes)
    rows = hard(rows, dtype)
    expected = cal.predict_proba(rows)
    found = in_torch(cal, rows)
    assert found.dtype == dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    logs = np.exp(in_torch(cal, rows, "log_proba"))
    np.testing.assert_allclose(logs, expected, rtol=0, atol=TOLERANCE)
    sure = clear(expected)
    numbers = in_torch(cal, rows, "label")[:, 0]
    np.testing.assert_array_equal(numbers[sure], expected.argmax(axis=1)[sure])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_onnxruntime_equals_predict_proba(fitted, hard, name, n_classes, dtype):
    cal, rows = fitted(name, n_classes)
    rows = hard(rows, dtype)
    expected = cal.predict_proba(rows)
    labels, found = in_onnx(cal, rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    sure = clear(expected)
    np.testing.assert_array_equal(labels[sure], cal.predict(rows)[sure])


def test_every_calibrator_is_among_the_maps(maps):
    listed = {type(cal) for cal in maps.values()}
    assert listed == {method.load() for method in registry.methods("calibrator")}


@pytest.mark.parametrize("name", ["matrix", "top_bins", "isotonic top"])
def test_many_classes(fitted, name):
    cal, rows = fitted(name, 40)
    expected = cal.predict_proba(rows)
    np.testing.assert_allclose(in_torch(cal, rows), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(in_onnx(cal, rows)[1], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("cal", "labels"),
    [
        (FedVectorCalibrator(classes=["c", "a", "b"]), list("cab")),
        (FedVectorCalibrator(classes=[7, -3, 10**12]), [7, -3, 10**12]),
        (FedVectorCalibrator(classes=[1.0, -4.0, 2.0]), [1.0, -4.0, 2.0]),
    ],
)
def test_columns_and_labels_are_those_of_the_classes(draw, cal, labels):
    rows, numbers = draw(300, 3, 2.0)
    cal.fit(rows, np.array(labels)[numbers])
    expected = cal.predict_proba(rows)
    np.testing.assert_allclose(in_torch(cal, rows), expected, rtol=0, atol=TOLERANCE)
    found, proba = in_onnx(cal, rows)
    np.testing.assert_allclose(proba, expected, rtol=0, atol=TOLERANCE)
    assert found.tolist() == cal.predict(rows).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kind", "missing"),
    [("proba", 0), ("proba", 1), ("log_proba", 0), ("logits", 1)],
)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "cal",
    [FedVectorCalibrator(), FedHistogramCalibrator(method="isotonic")],
    ids=["vector", "isotonic"],
)
def test_other_forms_of_scores(draw, cal, kind, missing, n_classes, dtype):
    rows, labels = draw(300, n_classes, 2.0)
    rows -= rows[:, :1] if kind == "logits" else 0
    if kind != "logits":
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    if kind == "proba":
        rows = np.exp(rows)
        rows[0] = np.eye(n_classes)[0]  # probabilities of 0 have a floor
    scores = np.ascontiguousarray(rows[:, missing:]).astype(dtype)
    cal = clone(cal).set_params(input_type=kind, classes=range(n_classes))
    cal.fit(scores, labels)
    expected = cal.predict_proba(scores)
    np.testing.assert_allclose(in_torch(cal, scores), expected, rtol=0, atol=TOLERANCE)
    found = in_onnx(cal, scores)[1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "cal",
    [
        FedTempCalibrator(eps=0.01, random_state=0),
        FedAccTempCalibrator(eps=0.01, prior_temperature=3.0, random_state=0),
        FedBinCalibrator(eps=0.01, normalize="none", random_state=0),
    ],
    ids=["temperature", "prior temperature", "unnormalised bins"],
)
def test_a_map_that_is_not_used_leaves_the_input(clients, federation, cal):
    cal.fit(clients)
    assert not cal.improves_
    rows = federation.test_logits
    for used in (True, False):
        cal.set_params(if_improves=used)
        expected = cal.predict_proba(rows)
        np.testing.assert_allclose(in_torch(cal, rows), expected, atol=TOLERANCE)
        np.testing.assert_allclose(in_onnx(cal, rows)[1], expected, atol=TOLERANCE)


def test_a_module_can_be_appended_moved_and_saved(fitted, tmp_path):
    cal, rows = fitted("vector")
    module = cal.to_torch()
    assert not list(module.parameters())
    net = torch.nn.Sequential(torch.nn.Linear(3, 3).double(), module)
    scores = torch.tensor(rows.astype(np.float64))
    net(scores).log().mean().backward()
    assert net[0].weight.grad.abs().sum() > 0
    torch.save(net, tmp_path / "net.pt")
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    torch.testing.assert_close(again(scores), net(scores), rtol=0, atol=0)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(copied(scores), module(scores), rtol=0, atol=0)
    fresh = fitted("vector", 3, l2=5.0)[0].to_torch()
    assert not torch.equal(fresh(scores), module(scores))
    fresh.load_state_dict(module.state_dict())
    torch.testing.assert_close(fresh(scores), module(scores), rtol=0, atol=0)


def test_single_precision_on_request(fitted, name):
    cal, rows = fitted(name)
    # A row or two next to the edge of a bin may fall on its other side.
    found = cal.to_torch().float()(torch.tensor(rows)).numpy()
    off = np.abs(found - cal.predict_proba(rows)).max(axis=1)
    assert np.median(off) < 1e-6
    assert np.mean(off > 1e-5) < 0.01


@pytest.mark.parametrize("n_rows", [0, 1])
def test_few_rows(fitted, name, n_rows):
    cal, rows = fitted(name)
    expected = cal.predict_proba(rows[:1])[:n_rows]
    found = in_torch(cal, rows[:n_rows])
    assert found.shape == (n_rows, 3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    labels, found = in_onnx(cal, rows[:n_rows])
    assert labels.shape == (n_rows,)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_half_precision_of_a_net_leaves_the_map_alone(fitted, name):
    cal, rows = fitted(name)
    scores = torch.tensor(rows.astype(np.float16))
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), cal.to_torch())
    for kind in (torch.float16, torch.bfloat16):
        module = net.to(kind)[1]
        assert net[0].weight.dtype == kind
        assert {b.dtype for b in module.buffers()} == {torch.float32}
        assert module(scores).dtype == torch.float16
    plain = cal.to_torch().float()
    torch.testing.assert_close(module(scores), plain(scores), rtol=0, atol=0)


def test_a_row_that_is_no_score_does_not_stop_the_others(fitted, name):
    cal, rows = fitted(name)
    rows = rows[:4].astype(np.float32)
    expected = cal.predict_proba(rows)[0]
    rows[1, 0], rows[2], rows[3, 1] = np.nan, -np.inf, np.inf
    for found in (in_torch(cal, rows), in_onnx(cal, rows)[1]):
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=TOLERANCE)
        assert np.isnan(found[1:]).all()


def test_gradients_of_hard_rows_are_finite(fitted, hard, name):
    cal, rows = fitted(name)
    scores = torch.tensor(hard(rows[:30], np.float64), requires_grad=True)
    cal.to_torch()(scores).square().sum().backward()
    assert torch.isfinite(scores.grad).all()


def test_gradients_are_those_of_the_map(fitted):
    cal, rows = fitted("order_preserving")
    module = cal.to_torch("log_proba")
    scores = torch.tensor(rows[:5].astype(np.float64), requires_grad=True)
    assert torch.autograd.gradcheck(module, (scores,))


@pytest.mark.parametrize("kind", ["order_preserving", "top_bins", "isotonic ovr"])
def test_torch_can_export_the_module_for_any_number_of_rows(fitted, kind):
    cal, rows = fitted(kind)
    module, scores = cal.to_torch(), torch.tensor(rows)
    free = {0: torch.export.Dim("n_rows")}
    program = torch.export.export(module, (scores[:10],), dynamic_shapes=(free,))
    torch.testing.assert_close(program.module()(scores), module(scores))


def test_wrong_requests_are_refused(fitted):
    cal, rows = fitted("temperature")
    with pytest.raises(ValueError, match="output must be one of 'proba', 'log_pr"):
        cal.to_torch("odds")
    with pytest.raises(ValueError, match=r"scores has shape \(600, 2\); expected rows"):
        cal.to_torch()(torch.tensor(rows[:, :2]))
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match="dtype must be one of 'float32', 'fl"):
        cal.to_onnx(dtype="float16")


def test_a_calibrator_without_a_described_map_is_refused(clients):
    class Halved(FedTempCalibrator):
        def _calibrate(self, logits):
            return logits / 2

    with pytest.raises(TypeError, match="Halved cannot be exported: its map is not"):
        Halved().fit(clients).to_torch()


def test_unfitted_calibrators_say_so():
    from sklearn.exceptions import NotFittedError

    for method in ("to_torch", "to_onnx"):
        with pytest.raises(NotFittedError):
            getattr(FedTempCalibrator(), method)()


def test_an_onnx_file_says_what_it_is(fitted, tmp_path):
    onnx = pytest.importorskip("onnx")
    cal, _ = fitted("bias_temperature")
    model = cal.to_onnx(tmp_path / "cal.onnx")
    read = onnx.load(tmp_path / "cal.onnx")
    assert read == model
    notes = {entry.key: entry.value for entry in read.metadata_props}
    assert notes["estimator"] == "FedBiasTempCalibrator"
    assert notes["input_type"] == "logits"
    assert notes["privacy"] == repr(cal.privacy_)
    assert read.producer_name == "skfedcal"


@pytest.mark.parametrize(
    ("method", "package"), [("to_torch", "torch"), ("to_onnx", "onnx")]
)
def test_a_missing_package_is_named(method, package):
    code = (
        "import sys\n"
        "from skfedcal import FedTempCalibrator\n"
        "cal = FedTempCalibrator().fit([[2., 0.], [0., 2.], [2., 0.]], [0, 1, 1])\n"
        f"sys.modules[{package!r}] = None\n"
        "try:\n"
        f"    cal.{method}()\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert f'pip install "skfedcal[{package}]"' in done.stdout


def test_the_example_of_the_reference_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    page = Path(__file__).parents[2] / "docs" / "reference" / "export.rst"
    found = re.search(
        r"   :name: deploy-elsewhere\n\n((?:   .*\n|\n)+)", page.read_text("utf-8")
    )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(textwrap.dedent(found[1]), names)
    expected = names["cal"].predict_proba(names["scores"])
    np.testing.assert_array_equal(names["again"], expected)
    for form in ("in_torch", "in_onnx"):
        np.testing.assert_allclose(names[form], expected, rtol=0, atol=TOLERANCE)

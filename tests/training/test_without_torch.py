"""Where torch is not installed: what works, and what the message says."""

import json
import subprocess
import sys

import pytest

# Torch is hidden in a process of its own: here it may be loaded already.
HIDE = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, NoTorch())
import numpy as np
X, y = np.eye(6), [0, 1] * 3
"""
COMMAND = 'pip install "skfedcal[torch]"'


# What needs torch, and what does not; one process for all, its imports cost most.
NEEDS = [
    "skfedcal.training.FedAvgClassifier().fit(X, y)",
    "skfedcal.training.fl_fcr().fit(X, y)",
    "skfedcal.training.MLP",
    "skfedcal.training.SmallCNN",
    "skfedcal.training.ResNet18",
    "skfedcal.experiments.skew_table()",
]
WORKS = [
    "skfedcal.FedTempCalibrator().fit(X[:, :2], y)",
    "skfedcal.FedGaussianHead().fit(X, y).predict(X)",
    "skfedcal.training.ClassStatistics.from_data(X, np.array(y), 2)",
    "skfedcal.training.FedAvgClassifier(penalties=skfedcal.training.MMCE())",
]
RUN = f"""
import json, skfedcal, skfedcal.training, skfedcal.experiments
said = {{}}
for code in {NEEDS + WORKS!r}:
    try:
        eval(code)
        said[code] = ""
    except ImportError as error:
        said[code] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    done = subprocess.run(
        [sys.executable, "-c", HIDE + RUN], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("code", WORKS)
def test_the_rest_of_the_library_works(said, code):
    assert said[code] == ""


@pytest.mark.parametrize("code", NEEDS)
def test_the_command_that_installs_torch_is_named(said, code):
    assert said[code].startswith("skfedcal.training needs torch")
    assert said[code].endswith(COMMAND)

"""Every test of training draws the same numbers, in whatever order tests run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)

"Shared fixtures. Tests import the installed package and need no network."

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    "The folder of real data beside the checkout, or a skip."
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("real data (../shared) is not here")
    return folder / "data"


@pytest.fixture(scope="session")
def embedded():
    "(model, tokenizer) of the embedded policy. Do not train it: copy it."
    from grpo_repro.data import load_policy

    return load_policy("running_sums")


@pytest.fixture(autouse=True)
def _no_leaks():
    "A test that changes torch's global state is a fault."
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    yield
    assert torch.get_default_dtype() == dtype
    torch.set_rng_state(state)

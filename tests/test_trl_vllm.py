"""TRL's two vLLM modes, for real on the CPU, with pooled wordings: what vLLM is asked, and what becomes of its log-probabilities.

TRL hands weights to vLLM in ways that the build for CPUs does not have (its linear layers are packed; no NCCL): in process this is done by
`reload_weights`, and the server, asked for one step, keeps its own. All else is TRL's and vLLM's.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")

from grpo_repro.tasks import embedded_policy_path  # noqa: E402

RUN = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from grpo_repro.engines import plain_weights
from test_trl import PATH, Seen, make, rows
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMClient, VLLMGeneration
from vllm import LLM


def reload_weights(self):
    self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(plain_weights(self.model))})
    self.llm.reset_prefix_cache()


def exact(*args, **options):
    return LLM(*args, dtype="float32", enforce_eager=True, **options)


if __name__ == "__main__":
    out, mode, url = Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    if mode == "colocate":
        vllm_generation.LLM, VLLMGeneration.sync_weights = exact, reload_weights
    else:
        VLLMClient.init_communicator = VLLMClient.update_named_params = lambda self, *a, **k: None
    options = {"vllm_server_base_url": url} if url else {"vllm_max_model_length": 64}
    wordings = {"other": lambda r: ["0+" + r["prompt"], "1+" + r["prompt"], "2+" + r["prompt"]]}
    steps = {"max_steps": 3 if mode == "colocate" else 1, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "learning_rate": 3e-3}
    trainer = make(out, "ep_grpo", None, rows(**wordings), rephrasings_column="other", use_vllm=True, vllm_mode=mode, **steps, **options)
    asked, generate = [], trainer.vllm_generation.generate

    def listen(prompts, num_generations, **more):
        asked.append({"prompts": trainer.processing_class.batch_decode(prompts), "each": num_generations})
        return generate(prompts=prompts, num_generations=num_generations, **more)

    trainer.vllm_generation.generate = listen
    trainer.train()
    scores = [{k: o[k] for k in ("old_per_token_logps", "sampling_per_token_logps", "completion_mask", "importance_sampling_ratio")} for _, o in trainer.seen]
    originals = [trainer.processing_class.batch_decode([i[m.bool()] for i, m in zip(o["prompt_ids"], o["prompt_mask"])]) for _, o in trainer.seen]
    torch.save(scores, out / "scores.pt")
    (out / "asked.json").write_text(json.dumps({"asked": asked, "originals": originals, "live": [bool(o["advantages"].any()) for _, o in trainer.seen]}))
"""


def check(tmp_path: Path, env: dict, mode: str, url: str = "") -> None:
    (tmp_path / "run.py").write_text(RUN)
    argv = [sys.executable, str(tmp_path / "run.py"), str(Path(__file__).parent), str(tmp_path), mode, url]
    done = subprocess.run(argv, env={**env, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    said, steps = json.loads((tmp_path / "asked.json").read_text()), torch.load(tmp_path / "scores.pt", weights_only=True)
    assert len(said["asked"]) == len(steps) == (3 if mode == "colocate" else 1)
    for asked, originals, step in zip(said["asked"], said["originals"], steps):
        assert asked["each"] == 2, "vLLM is asked for as many responses as a wording has, not for a group's"
        for start in (0, 8):
            original = originals[start]
            assert originals[start : start + 8] == [original] * 8
            assert asked["prompts"][start : start + 8] == [original] * 2 + [f"{k}+{original}" for k in (0, 0, 1, 1, 2, 2)]
        mask, ratio = step["completion_mask"].bool(), step["importance_sampling_ratio"]
        gap = (step["old_per_token_logps"] - step["sampling_per_token_logps"]).masked_fill(~mask, 0.0)
        under_original = torch.arange(16) % 8 < 2
        assert gap[under_original].abs().max() < 1e-3, "the same tokens, the same prompt, the same weights"
        assert torch.isnan(step["sampling_per_token_logps"][~under_original][mask[~under_original]]).all(), "of another prompt: not used as if real"
        assert torch.isfinite(ratio).all() and torch.equal(ratio[~under_original], torch.ones_like(ratio[~under_original]))
    assert said["live"][0], "the first step's rewards are mixed"


def test_colocated(tmp_path, vllm_env):
    check(tmp_path, vllm_env, "colocate")


@pytest.mark.slow
def test_server(tmp_path, vllm_server, vllm_env):
    exact = ("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--dtype", "float32", "--max-logprobs", "-1")
    check(tmp_path, vllm_env, "server", vllm_server(embedded_policy_path(), *exact))

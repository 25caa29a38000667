"vLLM as the sampler, for real on the CPU: greedy answers equal transformers' on the same weights, before and after updates, in process and by server."

import json
import math
import subprocess
import sys
import types
import warnings

import pytest
import torch
import transformers
from torch.testing import assert_close

from grpo_repro.config import Config
from grpo_repro.engines import _vllm, plain_weights, to_rollouts
from grpo_repro.tasks import character_tokenizer, embedded_policy_path
from grpo_repro.trainer import Trainer

RUN = """
import json, sys
import torch
from grpo_repro.config import Config
from grpo_repro.rollout import HFEngine
from grpo_repro.trainer import Trainer

def greedy(engine, prompts):
    found = engine.rollout(prompts, 1, max_new_tokens=24, temperature=0)
    return [ids[m].tolist() for ids, m in zip(found.completion_ids, found.mask)]

if __name__ == "__main__":
    extra = json.loads(sys.argv[1])
    trainer = Trainer(Config(**{**dict(questions_per_step=8, group_size=4, steps=3, lr=1e-3, warmup_steps=0, tensorboard=False, max_new_tokens=30), **extra}))
    prompts = [trainer.tokenizer(p)["input_ids"] for p in ("3+5=", "1+2+3+4=", "9+9+9=", "7+8+1+2+3=")]
    hf, out = HFEngine(trainer.model, trainer.eos_ids), []
    for _ in range(3):
        metrics = trainer.step() if out else None
        out.append({"vllm": greedy(trainer.engine, prompts), "hf": greedy(hf, prompts), "metrics": metrics})
    sampled = [trainer.engine.rollout(prompts, 3, max_new_tokens=9, temperature=0.8, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    print("RESULT" + json.dumps({"steps": out, "sampled": [s.completion_ids.tolist() for s in sampled], "cut": sampled[0].truncated.tolist()}))
"""


def check(said):
    steps = said["steps"]
    for step in steps:
        assert step["vllm"] == step["hf"]
    assert steps[0]["vllm"] != steps[-1]["vllm"], "the weights have moved far enough to be seen"
    for step in steps[1:]:
        m = step["metrics"]
        assert m["policy/sampler_gap"] < 1e-3 and 0 < m["policy/entropy"] < 4 and m["policy/grad_norm"] > 0 and m["time/sync"] < 5
    assert said["sampled"][0] == said["sampled"][1] != said["sampled"][2]


def train(tmp_path, env, **extra):
    (tmp_path / "run.py").write_text(RUN)
    argv = [sys.executable, str(tmp_path / "run.py"), json.dumps({"out": str(tmp_path / "out"), **extra})]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1].splitlines()[0])


@pytest.mark.parametrize("extra", [{}, {"lora_rank": 4, "lr": 0.03, "importance": "sequence_truncate"}], ids=["all weights", "lora"])
def test_training_with_vllm_in_process(tmp_path, extra, vllm_env):
    check(train(tmp_path, vllm_env, engine="vllm", max_prompt_tokens=16, **extra))


@pytest.mark.slow
def test_training_with_a_vllm_server(tmp_path, vllm_server, vllm_env):
    exact = ("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--dtype", "float32", "--no-enable-chunked-prefill")
    check(train(tmp_path, vllm_env, engine="server", engine_url=vllm_server(embedded_policy_path(), *exact)))
    assert not list((tmp_path / "out" / "weights").iterdir()), "weights are deleted once the server has them"


def test_a_server_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConnectionError, match="no answer from http://127.0.0.1:9/v1/models.*is --engine-url right"):
        Trainer(Config(out=str(tmp_path), engine="server", engine_url="http://127.0.0.1:9"))


def test_vllm_missing_is_said_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-repro\[vllm\]'"):
        Trainer(Config(out=str(tmp_path), engine="vllm"))


def test_an_untested_version_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(__version__="0.99.1"))
    with pytest.warns(UserWarning, match="vLLM 0.99.1 has not been tested"):
        _vllm()


def tiny(**changes):
    size = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**size, "eos_token_id": 1, **changes}))


@pytest.mark.parametrize("tied", [True, False])
def test_plain_weights_load_into_a_plain_model(tied):
    model, other = tiny(tie_word_embeddings=tied), tiny(tie_word_embeddings=tied)
    other.load_state_dict(dict(plain_weights(model)))
    ids = torch.arange(2, 12)[None]
    assert torch.equal(model(input_ids=ids).logits, other(input_ids=ids).logits)


def test_a_lora_adapter_is_merged_and_the_model_is_left_alone():
    peft = pytest.importorskip("peft")
    model, other = tiny(), tiny()
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"))
    ids, before = torch.arange(2, 12)[None], {k: v.clone() for k, v in tuned.state_dict().items()}
    other.load_state_dict(dict(plain_weights(tuned)))
    assert_close(other(input_ids=ids).logits, tuned(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in tuned.state_dict().items())


def test_log_probabilities_that_are_missing_stay_missing():
    found = to_rollouts([[5], [6]], [[([7, 1], [-0.5, -math.inf])], [([7], None)]], eos_ids=[1])
    assert found.sampler_logp[0, 0] == -0.5 and found.sampler_logp[0, 1].isnan() and found.sampler_logp[1, 0].isnan()
    with pytest.raises(ValueError, match="answered prompt 1 with 0 tokens"):
        to_rollouts([[5], [6]], [[([7], None)], [([], None)]], eos_ids=[1])


def test_a_vocabulary_larger_than_the_tokenizer_s_and_no_pad_token(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.pad_token = None
    model = tiny(vocab_size=len(tokenizer) + 64)
    trainer = Trainer(Config(out=str(tmp_path), tensorboard=False, questions_per_step=2, max_new_tokens=6, steps=1), model=model, tokenizer=tokenizer)
    metrics = trainer.step()
    assert metrics["length/mean"] <= 6 and trainer.latest.rollouts.completion_ids.max() >= len(tokenizer)


def test_all_responses_cut_off_is_a_warning_once(tmp_path):
    trainer = Trainer(Config(out=str(tmp_path), tensorboard=False, questions_per_step=2, max_new_tokens=1))
    with pytest.warns(UserWarning, match="every response was cut off at max_new_tokens = 1"):
        trainer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step()

"The plan against what a process takes, against hand counts, and what it refuses."

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers

from grpo_repro.config import Config
from grpo_repro.plan import GPUS, Shape, facts_of, knobs, longest_prompt, plan, report, worst_micro_batch

SMALL = dict(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
FAMILIES = {
    "llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config, "gemma2": transformers.Gemma2Config,
}  # fmt: skip

MEASURE = """
import json, sys
import datasets, torch, transformers
from grpo_repro.config import Config
from grpo_repro.data import load_policy
from grpo_repro.plan import plan
from grpo_repro.trainer import Trainer

def memory(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

options, out = json.loads(sys.argv[1]), sys.argv[2]
Trainer(Config(out=out, questions_per_step=2, group_size=2, max_new_tokens=4, **options)).step()  # whatever is imported late
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
shape = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=True)
architecture = transformers.LlamaConfig(vocab_size=8192, bos_token_id=1, eos_token_id=8191, pad_token_id=8191, **shape)
config = Config(out=out, questions_per_step=4, group_size=8, max_new_tokens=48, **options)
model = transformers.AutoModelForCausalLM.from_config(architecture, dtype=getattr(torch, config.dtype)).eval()
tokenizer = load_policy("running_sums")[1]
tokenizer.batch_decode = lambda ids, **_: [""] * len(ids)
rows = datasets.Dataset.from_list([{"prompt": "1" * 96, "answer": ""}] * 8)
trainer = Trainer(config, model=model, tokenizer=tokenizer, rows=rows, reward=lambda completions, **_: [float(i % 2) for i in range(len(completions))])
trainer.eos_ids[:] = [8191]
for _ in range(2):
    trainer.step()
measured = memory("VmHWM") - before
prompt = len(tokenizer("1" * 96)["input_ids"])
print(json.dumps([plan(config, gpu="l4", prompt=prompt, architecture=architecture).peak, measured]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's record of peak memory")
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}])
def test_memory_as_measured(options, tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run([sys.executable, "-c", MEASURE, json.dumps(options), str(tmp_path)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    predicted, measured = json.loads(done.stdout.splitlines()[-1])
    assert abs(predicted / measured - 1) < 0.15, (predicted, measured)


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_are_those_of_the_real_model(family):
    architecture = FAMILIES[family](**SMALL)
    model = transformers.AutoModelForCausalLM.from_config(architecture)
    facts = facts_of(Config(), architecture, Shape(8, 1, 8, 1, 16, 8))
    assert facts.parameters == facts.trained == sum(p.numel() for p in model.parameters())
    assert facts.cache == 24 * 2 * 2 * 2 * 8 * 4  # tokens, layers, keys and values, heads, width, bytes
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    attention = 4 * 2 * 4 * 8 * 24  # two products, layers, heads, width, context
    assert facts.decode == pytest.approx(2 * linear + attention, rel=0.02)


def test_lora_trains_little():
    pytest.importorskip("peft")
    facts = facts_of(Config(lora_rank=4), FAMILIES["llama"](**SMALL), Shape(8, 1, 8, 1, 16, 8))
    assert 0 < facts.trained < facts.parameters / 5


def test_knobs_save_and_are_named():
    architecture = FAMILIES["llama"](**SMALL | dict(hidden_size=4096, intermediate_size=16384, num_hidden_layers=4, vocab_size=32000, head_dim=1024))
    p = plan(Config(model="big", dtype="bfloat16", beta=0.1), gpu="l4", prompt=64, architecture=architecture)
    others = knobs(p, architecture)
    text = report(p, others)
    assert "--lora-rank 16" in others and all(q.peak < p.peak for q in others.values())
    assert p.capacity == 0.9 * GPUS["l4"].memory * 2**30
    assert ("does not fit" in text) == (p.peak > p.capacity)
    assert plan(replace(p.config, lora_rank=16), gpu="l4", prompt=64, architecture=architecture).memory["update"].get("reference") is None


def test_groups_stay_whole_where_tokens_are_shaped():
    config = Config(advantage="ep_grpo", micro_batch=12, questions_per_step=4)
    assert worst_micro_batch(config, 10, 10).rows == 8
    assert worst_micro_batch(replace(config, advantage="grpo"), 10, 10).rows == 12


def test_prompts_are_measured_from_the_data():
    assert longest_prompt(Config()) > 2
    assert longest_prompt(Config(max_prompt_tokens=3)) == 3


@pytest.mark.parametrize(
    "wrong, says",
    [
        (dict(gpu="h1000"), "known are"),
        (dict(processes=0), "at least 1"),
        (dict(completion=1000.0), "at most max_new_tokens"),
    ],
)
def test_refusals(wrong, says):
    with pytest.raises(ValueError, match=says):
        plan(Config(), prompt=8, **wrong)


def test_unknown_model_and_data(tmp_path):
    with pytest.raises(ValueError, match="config.json"):
        plan(Config(model=str(tmp_path)), prompt=8)
    with pytest.raises(ValueError, match="--prompt-tokens"):
        longest_prompt(Config(data=str(tmp_path / "none.jsonl")))

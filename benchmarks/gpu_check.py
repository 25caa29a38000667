"""Does everything that was tested on a CPU hold on a GPU? Prints a table; exits 0 without one.

    python benchmarks/gpu_check.py

Estimators on the GPU against the CPU in float64; scores in bfloat16 of policy and reference to the bit; five training steps and their speed;
shared prompts against single ones; vLLM, if it is installed, against our own sampler. Nothing here has run on a GPU yet.
"""

import copy
import datetime
import platform
import statistics
import tempfile
import time

import torch
import transformers

from grpo_repro import advantages as adv
from grpo_repro.config import Config
from grpo_repro.policy import score
from grpo_repro.rollout import HFEngine
from grpo_repro.trainer import Trainer


def estimators() -> str:
    g = torch.Generator().manual_seed(0)
    rewards, groups = torch.randn(4096, generator=g, dtype=torch.float64), torch.randint(0, 500, (4096,), generator=g)
    mask = torch.arange(64) < torch.randint(1, 65, (4096, 1), generator=g)
    tokens = {"mask": mask} | {k: torch.rand(4096, 64, generator=g, dtype=torch.float64) for k in ("entropy", "logp", "ref_logp")}
    worst = 0.0
    for name, f in adv.ESTIMATORS.items():
        here = adv.compute(f, rewards, groups, threshold=0.0, **tokens)
        there = adv.compute(f, rewards.cuda(), groups.cuda(), threshold=0.0, **{k: v.cuda() for k, v in tokens.items()}).cpu()
        worst = max(worst, float((here - there).abs().max()))
        assert worst < 1e-9, name
    return f"largest difference to the CPU {worst:.1e}"


def scores() -> str:
    trainer = Trainer(Config(device="cuda", dtype="bfloat16"))
    batch, _ = trainer.collect(trainer._generator(1))
    twin, r = copy.deepcopy(trainer.model), batch.rollouts
    with torch.no_grad():
        same = torch.equal(score(trainer.model, r.prompt_ids, r.completion_ids, r.mask).logp, score(twin, r.prompt_ids, r.completion_ids, r.mask).logp)
    assert same
    return "policy and reference equal to the bit in bfloat16"


def training(dtype: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Config(device="cuda", dtype=dtype, questions_per_step=64, advantage="ep_grpo", out=folder))
        rows = [trainer.step() for _ in range(6)][1:]
    assert all(r["policy/grad_norm"] is None or r["policy/grad_norm"] < 1e3 for r in rows)
    return f"EP-GRPO step {statistics.median(r['time/step'] for r in rows):.3f} s, {statistics.median(r['time/tokens_per_second'] for r in rows):,.0f} tokens/s"


def engine() -> str:
    "vLLM beside the trainer: its greedy output after three updates is the trainer's own."
    import importlib.util

    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed: not checked"
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Config(device="cuda", dtype="bfloat16", engine="vllm", engine_memory=0.2, lr=1e-3, out=folder))
        rows = [trainer.step() for _ in range(3)]
        prompts = [trainer.tokenizer(p)["input_ids"] for p in trainer.rows[:8]["prompt"]]
        own = HFEngine(trainer.model, trainer.eos_ids)
        mine, theirs = (e.rollout(prompts, 1, max_new_tokens=24, temperature=1e-4).completion_ids for e in (own, trainer.engine))
    width = min(mine.shape[1], theirs.shape[1])
    same = float((mine[:, :width] == theirs[:, :width]).float().mean())
    return f"sync {rows[-1]['time/sync']:.3f} s, sampler gap {rows[-1]['policy/sampler_gap']:.4f} nats, greedy tokens that agree {same:.0%}"


def sharing() -> str:
    "One group of 8, prompts run once against each time; the same scores."
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3
    )
    model = transformers.LlamaForCausalLM(config).cuda().eval()
    g = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, 49_000, (512,), generator=g).tolist()
    completions, mask = torch.randint(3, 49_000, (8, 64), generator=g).cuda(), torch.ones(8, 64, dtype=torch.bool, device="cuda")
    seconds, logp = {False: [], True: []}, {}
    for _ in range(4):
        for share in seconds:
            torch.cuda.synchronize()
            start = time.perf_counter()
            logp[share] = score(model, [prompt] * 8, completions, mask, share=share).logp
            logp[share].sum().backward()
            torch.cuda.synchronize()
            seconds[share].append(time.perf_counter() - start)
    gap = float((logp[False] - logp[True]).abs().max())
    assert gap < 1e-3, gap
    return f"prompt once {statistics.median(seconds[False][1:]) / statistics.median(seconds[True][1:]):.2f} times as fast, largest difference {gap:.1e} nats"


def main() -> None:
    if not torch.cuda.is_available():
        print("no GPU here: nothing checked")
        return
    print(f"{datetime.date.today()}  {torch.cuda.get_device_name()}  torch {torch.__version__}  python {platform.python_version()}")
    for name, f in {
        "estimators": estimators,
        "scores": scores,
        "training float32": lambda: training("float32"),
        "training bfloat16": lambda: training("bfloat16"),
        "shared prompts": sharing,
        "vLLM": engine,
    }.items():
        print(f"{name:18s} {f()}")


if __name__ == "__main__":
    main()

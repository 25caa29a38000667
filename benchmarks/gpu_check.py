"""Does everything that was tested on a CPU hold on a GPU? Prints a table; exits 0 without one.

    python benchmarks/gpu_check.py

Estimators on the GPU against the CPU in float64; scores in bfloat16 of policy and reference to the bit; five training steps and their speed.
"""

import copy
import datetime
import platform
import statistics
import tempfile

import torch

from grpo_repro import advantages as adv
from grpo_repro.config import Config
from grpo_repro.policy import score
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
    }.items():
        print(f"{name:18s} {f()}")


if __name__ == "__main__":
    main()

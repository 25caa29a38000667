"""The same toy run by our trainer and by TRL with our advantages: reward of each step, and accuracy at the end. Resumable, seed by seed.

    python benchmarks/trl_curves.py [--out nbs/results/trl_curves.csv] [--seeds 5] [--steps 40] [--lr 3e-5 1e-4]

Running sums, embedded policy, 16 questions x 8 responses a step, AdamW after 5 steps of warm-up, loss over all tokens, no KL, strictly on-policy.
Data order and random numbers differ between the two, so only distributions can agree. Needs `trl`.

Predicted before the first run: the mean reward of the two engines differs by less than the seeds' spread at every step; accuracy at the end within 0.02.
(The first three runs were at 1e-4 without warm-up, where the reward fell under both trainers; so the learning rate is lower now.)

Predicted after 3e-5, before 1e-4: at 3e-5 hardly anything moves in 40 steps, so that curves agree says little. At 1e-4 they will move, under both trainers the
same way for each method: accuracy at the end within the larger of the two engines' standard deviations over seeds, for each of the three methods.
"""

import argparse
import csv
import itertools
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback

from grpo_repro.config import Config
from grpo_repro.data import load_rows
from grpo_repro.integrations.trl import GRPOConfig, GRPOTrainer
from grpo_repro.rollout import end_ids, rollout
from grpo_repro.tasks import embedded_policy_path, running_sums, running_sums_reward
from grpo_repro.trainer import Trainer

METHODS = {"grpo": {}, "corpo": {"threshold": 0.5}, "ep_grpo": {}}


def accuracy(model, tokenizer) -> float:
    rows = running_sums(200, seed=77)
    prompts = [tokenizer(r["prompt"])["input_ids"] for r in rows]
    found = rollout(model.eval(), prompts, 4, max_new_tokens=40, eos_ids=end_ids(model, tokenizer), generator=torch.Generator().manual_seed(0))
    texts = [tokenizer.decode(ids[m].tolist(), skip_special_tokens=True) for ids, m in zip(found.completion_ids, found.mask)]
    rewards = running_sums_reward(texts, answer=[rows[q]["answer"] for q in found.question.tolist()])
    return sum(rewards) / len(rewards)


def by_us(method: str, seed: int, steps: int, lr: float) -> tuple[list[float], float]:
    kwargs = METHODS[method]
    config = Config(
        advantage=method, threshold=kwargs.get("threshold"), steps=steps, lr=lr, warmup_steps=5, seed=seed, out=tempfile.mkdtemp(), tensorboard=False,
        eval_questions=4, save_every=10**6, device="cpu",
    )  # fmt: skip
    trainer = Trainer(config)
    rows = trainer.train()
    return [r["reward/mean"] for r in rows], accuracy(trainer.model, trainer.tokenizer)


def by_trl(method: str, seed: int, steps: int, lr: float) -> tuple[list[float], float]:
    reward = lambda completions, answer, **_: running_sums_reward(completions, answer=answer)
    reward.__name__ = "running_sums"
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), advantage=method, advantage_kwargs=METHODS[method] or None, per_device_train_batch_size=128, num_generations=8,
        max_steps=steps, max_completion_length=40, learning_rate=lr, lr_scheduler_type="constant_with_warmup", warmup_steps=5, beta=0.0, loss_type="dapo",
        epsilon=0.2, weight_decay=0.0, max_grad_norm=1.0, temperature=1.0, top_k=0, report_to=[], use_cpu=True, bf16=False, logging_steps=1,
        save_strategy="no", disable_tqdm=True, seed=seed,
    )  # fmt: skip
    path = str(embedded_policy_path())
    rows = Dataset.from_list([{"prompt": r["prompt"], "answer": r["answer"]} for r in load_rows("running_sums", seed=seed)])
    trainer = GRPOTrainer(path, reward, args, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(path))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [h["reward"] for h in trainer.state.log_history if "reward" in h], accuracy(trainer.model, trainer.processing_class)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("nbs/results/trl_curves.csv"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-5, 1e-4])
    args = parser.parse_args()
    done = set()
    if args.out.is_file():
        done = {(float(r["lr"]), int(r["seed"]), r["method"], r["engine"]) for r in csv.DictReader(args.out.open())}
    else:
        args.out.write_text("lr,method,engine,seed,step,reward,accuracy\n")
    engines = {"ours": by_us, "TRL": by_trl}
    for lr, seed, method, engine in itertools.product(args.lr, range(args.seeds), METHODS, engines):
        if (lr, seed, method, engine) in done:
            continue
        rewards, final = engines[engine](method, seed, args.steps, lr)
        lines = [f"{lr:g},{method},{engine},{seed},{i},{r:.4f},{final:.4f}\n" for i, r in enumerate(rewards, 1)]
        with args.out.open("a") as file:
            file.write("".join(lines))
        print(f"{lr:g} {method} {engine} seed {seed}: reward {rewards[0]:.3f} to {rewards[-1]:.3f}, accuracy {final:.3f}", flush=True)


if __name__ == "__main__":
    main()

"""What EP-GRPO costs inside TRL: a step of the subclass with `advantage="ep_grpo"` against TRL's own GRPO, interleaved in one process.

    python benchmarks/trl_ep.py [--rounds 5] [--steps 6] [--model FOLDER]

Both train the same policy on the same questions without KL, 16 x 8 completions of at most 40 tokens (with a model: 4 x 8 of at most 64), at a learning rate
so small that lengths stay. Printed: median seconds of a step per round, and the ratio. Needs `trl`.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TQDM_DISABLE", "1")

import trl
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

from grpo_repro.integrations.trl import GRPOConfig, GRPOTrainer
from grpo_repro.tasks import embedded_policy_path, running_sums, running_sums_reward


class Clock(TrainerCallback):
    "Seconds of each step."

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.begun = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.begun)


def reward(completions, answer, **_):
    return running_sums_reward(completions, answer=answer)


def step_seconds(kind: str, model: str, steps: int, seed: int, small: bool) -> float:
    questions, tokens = (16, 40) if small else (4, 64)
    theirs = trl.GRPOConfig, trl.GRPOTrainer, {}
    config, trainer, extra = theirs if kind == "TRL's GRPO" else (GRPOConfig, GRPOTrainer, {"advantage": "ep_grpo"})
    args = config(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=questions * 8, num_generations=8, max_completion_length=tokens, max_steps=steps + 2,
        beta=0.0, learning_rate=1e-7, report_to=[], use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, seed=seed, logging_steps=1000, **extra,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": r["prompt"], "answer": r["answer"]} for r in running_sums(512, seed=3)])
    clock = Clock()
    made = trainer(model, reward, args, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(model), callbacks=[clock])
    made.remove_callback(PrinterCallback)
    made.train()
    return statistics.median(clock.seconds[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--model", default=None)
    args = parser.parse_args()
    model, ratios = args.model or str(embedded_policy_path()), []
    for r in range(args.rounds):
        kinds = ["TRL's GRPO", "EP-GRPO in TRL"]
        took = {kind: step_seconds(kind, model, args.steps, r, args.model is None) for kind in (kinds if r % 2 == 0 else kinds[::-1])}
        ratios.append(took["EP-GRPO in TRL"] / took["TRL's GRPO"])
        print("  ".join(f"{kind} {took[kind]:.3f} s" for kind in kinds), f" ratio {ratios[-1]:.2f}", flush=True)
    print(f"ratio, median of {args.rounds} rounds: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()

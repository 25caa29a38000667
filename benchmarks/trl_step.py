"""A training step on the embedded task: ours and TRL's GRPOTrainer, interleaved in one process.

    python benchmarks/trl_step.py [--rounds 5] [--steps 10]

Both train the same policy on the same questions: 16 x 8 completions of at most 40 tokens, temperature 1, no KL, AdamW, float32. The learning rate
is tiny, so that both keep sampling completions of the same lengths. Printed: median seconds of a step per round, and the ratio. Needs `trl`.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TQDM_DISABLE", "1")

import datasets
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_repro.data import load_policy
from grpo_repro.tasks import running_sums, running_sums_reward
from grpo_repro.config import Config
from grpo_repro.trainer import Trainer

QUESTIONS, GROUP, TOKENS, LR = 16, 8, 40, 1e-7


class Clock(TrainerCallback):
    "Seconds and completion lengths of each of TRL's steps."

    def __init__(self):
        self.seconds, self.lengths = [], []

    def on_step_begin(self, *args, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.start)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "completions/mean_length" in (logs or {}):
            self.lengths.append(logs["completions/mean_length"])


def theirs(steps: int, seed: int, folder: str) -> Clock:
    model, tokenizer = load_policy("running_sums")
    clock = Clock()
    args = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=QUESTIONS * GROUP, num_generations=GROUP, max_completion_length=TOKENS, temperature=1.0, beta=0.0,
        learning_rate=LR, lr_scheduler_type="constant", max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, seed=seed, disable_tqdm=True,
    )  # fmt: skip
    reward = lambda completions, answer, **_: running_sums_reward(completions, answer)
    reward.__name__ = "running_sums"
    rows = datasets.Dataset.from_list(running_sums(4096, seed=seed)).select_columns(["prompt", "answer"])
    trainer = GRPOTrainer(model, reward, args=args, train_dataset=rows, processing_class=tokenizer, callbacks=[clock])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock


def ours(steps: int, seed: int, folder: str) -> tuple[list[float], list[float]]:
    config = Config(questions_per_step=QUESTIONS, group_size=GROUP, max_new_tokens=TOKENS, lr=LR, warmup_steps=1, seed=seed, out=folder)
    trainer = Trainer(config)
    rows = [trainer.step() for _ in range(steps)]
    return [r["time/step"] for r in rows], [r["length/mean"] for r in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    ratios = []
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for i in range(args.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            clock = theirs(args.steps, i, folder)
            seconds, lengths = ours(args.steps, i, folder)
        t, o = statistics.median(clock.seconds[2:]), statistics.median(seconds[2:])
        if i:  # the first round warms up
            ratios.append(t / o)
            tokens = statistics.mean(clock.lengths), statistics.mean(lengths)
            print(f"round {i}: TRL {t:.3f} s ({tokens[0]:.1f} tokens a response), ours {o:.3f} s ({tokens[1]:.1f}), ratio {t / o:.2f}", flush=True)
    print(f"ratio TRL / ours: median {statistics.median(ratios):.2f}, min {min(ratios):.2f}, max {max(ratios):.2f}")


if __name__ == "__main__":
    main()

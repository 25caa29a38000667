"""A training step: ours and TRL's GRPOTrainer, interleaved in one process.

    python benchmarks/trl_step.py [--rounds 5] [--steps 10]
    python benchmarks/trl_step.py --model FOLDER [--shapes 256:32 128:128 32:256] [--rounds 3] [--steps 4]

Both train the same policy on the same questions at temperature 1 without KL, with AdamW. The learning rate is tiny, so that both keep sampling
completions of the same lengths. Without `--model`: the embedded policy in float32, 16 x 8 completions of at most 40 tokens. With a model: 2 questions,
8 completions each, prompts and completions of exactly the given numbers of tokens, and a reward that differs in every group, so that every response
is trained on. Printed: median seconds of a step per round, and the ratio. Needs `trl`.
"""

import argparse
import functools
import os
import statistics
import tempfile
import time

os.environ.setdefault("TQDM_DISABLE", "1")

import datasets
import torch
import transformers
import trl
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_repro.config import Config
from grpo_repro.data import load_policy
from grpo_repro.tasks import running_sums, running_sums_reward
from grpo_repro.trainer import Trainer

GROUP, LR = 8, 1e-7


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


def embedded(seed: int):
    "The embedded task: model, tokenizer, questions, reward."
    reward = lambda completions, answer, **_: running_sums_reward(completions, answer)
    rows = datasets.Dataset.from_list(running_sums(4096, seed=seed)).select_columns(["prompt", "answer"])
    return *load_policy("running_sums"), rows, reward


def of_length(folder: str, dtype: str, prompt: int, seed: int):
    "A pretrained model with prompts of so many tokens; nothing ends a completion but its limit."
    model, tokenizer = load_policy(folder, dtype)
    tokenizer.chat_template, last = None, len(tokenizer) - 1
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(last)
    model.generation_config.eos_token_id = model.config.eos_token_id = last
    words = [w for w in (" house tree river stone cloud road bread music light water green small old long open").split(" ") if w]
    draw = torch.Generator().manual_seed(seed)
    texts = [" ".join(words[i] for i in torch.randint(len(words), (prompt,), generator=draw)) for _ in range(64)]
    assert all(len(tokenizer(t)["input_ids"]) == prompt for t in texts)
    reward = lambda completions, **_: [float(len(set(c))) for c in completions]
    return model, tokenizer, datasets.Dataset.from_list([{"prompt": t, "answer": ""} for t in texts]), reward


def theirs(setting, questions: int, length: int, steps: int, seed: int, folder: str) -> tuple[list[float], list[float]]:
    model, tokenizer, rows, reward = setting
    reward.__name__ = "reward"
    clock = Clock()
    args = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=questions * GROUP, num_generations=GROUP, max_completion_length=length, temperature=1.0, beta=0.0,
        learning_rate=LR, lr_scheduler_type="constant", max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, seed=seed, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(model, reward, args=args, train_dataset=rows, processing_class=tokenizer, callbacks=[clock])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.seconds, clock.lengths


def ours(setting, questions: int, length: int, steps: int, seed: int, folder: str) -> tuple[list[float], list[float]]:
    model, tokenizer, rows, reward = setting
    config = Config(questions_per_step=questions, group_size=GROUP, max_new_tokens=length, lr=LR, warmup_steps=1, seed=seed, out=folder)
    trainer = Trainer(config, model=model, tokenizer=tokenizer, rows=rows, reward=reward)
    found = [trainer.step() for _ in range(steps)]
    return [r["time/step"] for r in found], [r["length/mean"] for r in found]


def compare(name: str, make, questions: int, length: int, rounds: int, steps: int) -> None:
    "Rounds of some steps of TRL and some of ours, each with a model of its own."
    ratios, discard = [], min(2, steps - 1)
    for i in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            seconds = [f(make(i), questions, length, steps, i, folder) for f in (theirs, ours)]
        (t, o), (a, b) = (statistics.median(s[discard:]) for s, _ in seconds), (statistics.mean(n) for _, n in seconds)
        if i:  # the first round warms up
            ratios.append(t / o)
            print(f"  {name}, round {i}: TRL {t:.3f} s ({a:.1f} tokens a response), ours {o:.3f} s ({b:.1f}), ratio {t / o:.2f}", flush=True)
    print(f"{name}: TRL / ours median {statistics.median(ratios):.2f}, min {min(ratios):.2f}, max {max(ratios):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shapes", nargs="+", default=["256:32", "128:128", "32:256"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}, TRL {trl.__version__}, {args.dtype}")
    if not args.model:
        return compare("embedded task", embedded, 16, 40, args.rounds or 5, args.steps or 10)
    for shape in args.shapes:
        prompt, length = map(int, shape.split(":"))
        compare(
            f"prompt {prompt}, completion {length}", functools.partial(of_length, args.model, args.dtype, prompt), 2, length, args.rounds or 3, args.steps or 4
        )


if __name__ == "__main__":
    main()

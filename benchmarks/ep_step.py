"""A whole training step of EP-GRPO beside one of GRPO: same policy, same rollouts, in turns.

    python benchmarks/ep_step.py [rounds]

Prints medians and the ratio of each round, twice: with a reward under which every group disagrees, so that both train on all
responses, and with the task's own reward, where GRPO does not run silent groups through the model again and EP-GRPO does.
"""

import copy
import statistics
import sys
import tempfile
import time

import torch

from grpo_repro.config import Config
from grpo_repro.trainer import Trainer


def alternating(completions, **_):
    "Right and wrong in turns: every group disagrees."
    return [float(i % 2) for i in range(len(completions))]


def seconds(trainer: Trainer, weights: dict) -> float:
    "One step from these weights; it is always step 2, so the rollouts are always the same."
    trainer.model.load_state_dict(weights)
    trainer.done, trainer.position = 1, 16
    start = time.perf_counter()
    trainer.step()
    return time.perf_counter() - start


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    with tempfile.TemporaryDirectory() as folder:
        for name, reward in (("every group disagrees", alternating), ("the task's reward", None)):
            pair = {m: Trainer(Config(advantage=m, out=folder), reward=reward) for m in ("grpo", "ep_grpo")}
            generator = torch.Generator().manual_seed(0)
            weights = copy.deepcopy(pair["grpo"].model.state_dict())
            for p in weights.values():  # a policy that has left its reference
                p.add_(0.01 * p.std().nan_to_num() * torch.randn(p.shape, generator=generator))
            times = {m: [] for m in pair}
            for i in range(rounds + 1):
                for m, trainer in pair.items():
                    took = seconds(trainer, weights)
                    if i:  # the first round warms up
                        times[m].append(took)
            ratios = sorted(b / a for a, b in zip(times["grpo"], times["ep_grpo"]))
            print(f"{name}: GRPO {statistics.median(times['grpo']):.3f} s, EP-GRPO {statistics.median(times['ep_grpo']):.3f} s, ratio", end=" ")
            print(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {rounds} rounds, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()

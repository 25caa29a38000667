"""How long grading and counting take. Usage: python benchmarks/grading.py ROLLOUTS.jsonl [--responses 100000]

ROLLOUTS has `answer` and `response`. Responses are repeated up to the asked number. Repeats would be answered from memory, so "no two alike" turns each
number n of a final answer into n + c with a different c for each copy, in reference and answer alike; what is right stays right.
"""

import argparse
import json
import os
import time

import torch

from grpo_repro.evaluate import interval
from grpo_repro.grading import boxed
from grpo_repro.rewards import MathGrader


def shifted(row: dict, copy: int) -> tuple[str, str]:
    "The same response with another answer, in the last box and in the reference; a response without a plain number keeps its answer."
    gold, answer = row["answer"], (boxed(row["response"]) or [""])[-1]
    if not (gold.lstrip("-").isdigit() and answer.lstrip("-").isdigit()):
        suffix = f" + {copy}" if copy else ""
        return gold + suffix, row["response"][: row["response"].rfind("\\boxed")] + f"\\boxed{{{answer}{suffix}}}"
    return str(int(gold) + copy), row["response"][: row["response"].rfind("\\boxed")] + f"\\boxed{{{int(answer) + copy}}}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rollouts")
    parser.add_argument("--responses", type=int, default=100_000)
    args = parser.parse_args()
    rows = [json.loads(line) for line in open(args.rollouts, encoding="utf-8")]
    copies = -(-args.responses // len(rows))
    ways = {
        "as they are": [(r["answer"], r["response"]) for _ in range(copies) for r in rows],
        "no two alike": [shifted(r, c) for c in range(copies) for r in rows],
    }
    for name, pairs in ways.items():
        golds, texts = zip(*pairs[: args.responses])
        grader = MathGrader(workers=os.cpu_count())
        grader(["x"], ["\\boxed{y+1}"])  # start the workers
        begun = time.perf_counter()
        verdicts = grader(list(golds), list(texts))
        took = time.perf_counter() - begun
        about = f"{sum(map(bool, verdicts)) / len(verdicts):.3f} right, {len(grader.known):,} by algebra, {grader.timeouts} timeouts"
        print(f"{name:14s} {len(texts):,} responses in {took:.1f} s, {about}")
        grader.close()
    values = torch.rand(675, 5)
    begun = time.perf_counter()
    interval(values)
    print(f"bootstrap of 10,000 resamples, 675 problems, 5 values of k: {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main()

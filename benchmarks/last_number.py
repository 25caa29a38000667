"""What guessing is worth: right answers of finished evaluations, with and without the last number of a response that was cut off taken for its answer.

    python benchmarks/last_number.py EVAL [EVAL ...] [--out FILE.json]

EVAL is a folder that `grpo-repro eval` wrote. Also counted: responses that two evaluations have in common to the last letter.
"""

import argparse
import itertools
import json
from pathlib import Path

import torch

from grpo_repro.evaluate import pass_at_k
from grpo_repro.grading import final_answers
from grpo_repro.rewards import MathGrader
from grpo_repro.samples import read_samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evals", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    grader, table = MathGrader(), []
    samples = {folder.name: read_samples(folder / "graded.jsonl") for folder in args.evals}
    for name, rows in samples.items():
        for benchmark in dict.fromkeys(b for b, _, _ in rows):
            mine = {key: row for key, row in rows.items() if key[0] == benchmark}
            golds = [row["answer"] for row in mine.values()]
            guessed = grader.compare(golds, final_answers(golds, [row["response"] for row in mine.values()]))
            n = 1 + max(i for _, _, i in mine)
            problems = {problem: i for i, problem in enumerate(dict.fromkeys(p for _, p, _ in mine))}
            right = torch.zeros(len(problems))
            for (_, problem, _), verdict in zip(mine, guessed):
                right[problems[problem]] += bool(verdict)
            passes = {f"pass@{k} with guesses": float(pass_at_k(right, n, k).mean()) for k in (1, n)}
            cut = sum(row["truncated"] for row in mine.values()) / len(mine)
            counts = {"right": sum(row["correct"] for row in mine.values()), "right with guesses": int(right.sum())}
            table.append({"evaluation": name, "benchmark": benchmark, "responses": len(mine), "cut off": cut, **counts, **passes})
    grader.close()
    text = lambda row: row["response"].strip()
    same = {}
    for a, b in itertools.combinations(samples, 2):
        shared = [key for key in samples[a] if key in samples[b]]
        same[f"{a}, {b}"] = [sum(text(samples[a][k]) == text(samples[b][k]) for k in shared), len(shared)]
    found = {"evaluations": table, "identical": same}
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

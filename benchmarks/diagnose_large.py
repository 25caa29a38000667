"""Time and memory of `diagnose` on a large rollout log. Usage: python benchmarks/diagnose_large.py [--responses 10000000] [--chars 200]

Writes a log as verl writes it (groups of 8, a folder of files), reads it in a process of its own, and prints that process's seconds and peak memory.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def write(folder: Path, responses: int, chars: int, steps: int = 20) -> None:
    rng, text, each = random.Random(0), "x" * chars, responses // steps // 8
    for step in range(steps):
        with (folder / f"{step}.jsonl").open("w") as file:
            for q in range(each):
                p = rng.random() ** 3
                head = f'{{"input": "question {step} {q}: {text}", "output": "{text}", "gts": "1", "score": '
                file.write("".join(f'{head}{float(rng.random() < p)}, "step": {step}}}\n' for _ in range(8)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=10_000_000)
    parser.add_argument("--chars", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), args.responses, args.chars)
        size = sum(p.stat().st_size for p in Path(folder).iterdir())
        begun = time.perf_counter()
        code = "import sys; from grpo_repro.cli import main; sys.exit(main(['diagnose', sys.argv[1], '--json']))"
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        d = json.loads(done.stdout)
    print(f"{d['responses']:,} responses, {d['groups']:,} groups, {size / 2**30:.1f} GiB of JSONL: {time.perf_counter() - begun:.0f} s, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()

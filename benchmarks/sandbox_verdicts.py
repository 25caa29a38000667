"""Every verdict of the sandbox beside that of a plain process: reference solutions, renamed ones and mutants of a file of HumanEval's kind.

Usage: python benchmarks/sandbox_verdicts.py humaneval.jsonl [JOBS]. Runs mutated code outside the sandbox; it is our own, made from the references.
"""

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_repro.code_pairs import Record, judge_all, made_here, read_problems


def plain(problem, source: str) -> bool:
    "Does the solution pass in a process without any sandbox?"
    limit = "import random, resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); random.seed(0)"
    code = f"{limit}\n{source}\n{problem.test}\ncheck({problem.entry_point})\nprint('PASS')"
    try:
        return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=12).stdout.endswith("PASS\n")
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    problems, jobs = read_problems(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    by_id = {p.id: p for p in problems}
    candidates = list({(c.problem, c.source): c for p in problems for c in made_here(p, n_mutants=6, seed=0)}.values())
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        verdicts = judge_all(problems, candidates, Record(Path(folder) / "runs.jsonl"), jobs=jobs)
    middle = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        passed = list(pool.map(lambda c: plain(by_id[c.problem], c.source), candidates))
    end = time.perf_counter()
    differ = [c for c, p in zip(candidates, passed) if verdicts[c].passed != p]
    print(f"{len(candidates)} solutions, {sum(passed)} pass; sandbox {middle - start:.0f} s, plain {end - middle:.0f} s; verdicts that differ: {len(differ)}")
    for c in differ:
        print(c.problem, c.origin, verdicts[c], c.source, sep="\n")


if __name__ == "__main__":
    main()

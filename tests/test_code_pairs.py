"From problems with tests to labelled pairs: real runs, real kills, a real HTTP endpoint on loopback."

import hashlib
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from test_sandbox import needs_sandbox

from grpo_repro.cli import main
from grpo_repro.code_pairs import KINDS, Record, build_pairs, code_of, made_here, mutants, read_candidates, read_problems, rename_locals
from grpo_repro.sandbox import Sandbox

RUN = [sys.executable, "-c", "import sys; from grpo_repro.cli import main; sys.exit(main(sys.argv[1:]))"]
DOUBLE = {
    "task_id": "t/0",
    "prompt": 'def double(x: int, n: int = 1) -> int:\n    """Twice x, n times."""\n',
    "entry_point": "double",
    "canonical_solution": "    total = x\n    for i in range(n):\n        if n > 0:\n            total = total + total\n    return total\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(1, 3) == 8\n    assert candidate(5, 0) == 5",
}
ADD = {
    "id": "p/1",
    "problem": "Add two numbers.",
    "tests": [{"input": "1 2", "output": "3\n"}, {"input": "5 -7", "output": "-2"}],
    "solution": "a, b = map(int, input().split())\ntotal = a + b\nif total == 0:\n    print(0)\nelse:\n    print(total)",
}


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def contents(folder):
    return {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.name != "runs.jsonl"}


@pytest.mark.parametrize(
    "row, message",
    [
        ({**ADD, "tests": []}, r"line 2 \(p/1\): no tests"),
        ({k: v for k, v in ADD.items() if k != "problem"}, "no text"),
        ({**ADD, "tests": [{"input": "1"}]}, "`input` and `output`"),
        ({**DOUBLE, "test": ""}, r"line 2 \(t/0\).*defines check"),
        ({**DOUBLE, "entry_point": None}, "entry_point"),
        ("{broken", "line 2: not JSON"),
        ("[1]", "expected an object"),
        ({**DOUBLE, "task_id": "first"}, "'first' is there twice"),
    ],
)
def test_a_faulty_problem_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        read_problems(write(tmp_path / "p.jsonl", [{**ADD, "id": "first"}, row]))


def test_an_empty_file_and_faulty_candidates_are_named(tmp_path):
    with pytest.raises(ValueError, match="no problems"):
        read_problems(write(tmp_path / "p.jsonl", []))
    problems = read_problems(write(tmp_path / "p.jsonl", [DOUBLE]))
    with pytest.raises(ValueError, match="line 1: no problem 'x'"):
        read_candidates(write(tmp_path / "c.jsonl", [{"task_id": "x", "completion": "1"}]), problems)
    with pytest.raises(ValueError, match="no `completion`"):
        read_candidates(write(tmp_path / "c.jsonl", [{"task_id": "t/0"}]), problems)


def test_code_is_found_in_a_response_of_any_shape():
    assert code_of("x = 1") == "x = 1"
    assert code_of("a\n```python\nx = 1\n```\nb\n```Python\nx = 2\n```") == "x = 2\n"
    assert code_of("```\n" * 10**5 + "x") is not None  # in a moment


def test_mutants_differ_and_are_made_again_alike(tmp_path):
    (problem,) = read_problems(write(tmp_path / "p.jsonl", [DOUBLE]))
    made = mutants(problem.reference, "double", n=6, seed=3)
    assert len(set(made)) == len(made) == 6 and made == mutants(problem.reference, "double", n=6, seed=3)
    assert mutants(problem.reference, "double", n=6, seed=4) != made
    assert "total" not in rename_locals(problem.reference, "double") and "x: int" in rename_locals(problem.reference, "double")


def test_a_torn_record_goes_on_and_a_second_writer_is_refused(tmp_path):
    record = Record(tmp_path / "r.jsonl")
    record.add("a", {"x": 1})
    with pytest.raises(ValueError, match="another process"):
        Record(tmp_path / "r.jsonl")
    record.close()
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"key": "b", "x"')
    record = Record(tmp_path / "r.jsonl")
    assert record.done == {"a": {"x": 1}}
    record.add("c", {"x": 3})
    record.close()
    assert Record(tmp_path / "r.jsonl").done == {"a": {"x": 1}, "c": {"x": 3}}


@needs_sandbox
def test_pairs_of_both_schemas_are_balanced_and_say_the_truth(tmp_path):
    path = write(tmp_path / "p.jsonl", [DOUBLE, ADD])
    manifest = build_pairs(path, tmp_path / "out", n_mutants=12, per_problem=4, validation=0.5, progress=False)
    assert manifest["references_that_fail"] == [] and manifest["candidates"]["reference"] == {"passed": 2}
    labels = {"one_right": {(True, False), (False, True)}, "both_right": {(True, True)}, "both_wrong": {(False, False)}}
    problems = {}
    for split in ("train", "validation"):
        for kind in KINDS:
            text = (tmp_path / "out" / f"{split}_{kind}.jsonl").read_text()
            rows = [json.loads(line) for line in text.splitlines()]
            assert manifest["pairs"][f"{split}_{kind}"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
            assert len(rows) == manifest["pairs"][f"{split}_{kind}"]["pairs"] > 0
            assert {(r["right_a"], r["right_b"]) for r in rows} <= labels[kind]
            assert all(("mutant" == r[f"origin_{x}"]) != r[f"right_{x}"] for r in rows for x in "ab")
            problems.setdefault(split, set()).update(r["problem"] for r in rows)
    assert not problems["train"] & problems["validation"]


@needs_sandbox
def test_one_right_has_the_right_one_on_either_side_equally_often(tmp_path):
    path = write(tmp_path / "p.jsonl", [{**DOUBLE, "task_id": f"t/{i}"} for i in range(4)])
    build_pairs(path, tmp_path / "out", n_mutants=6, per_problem=2, validation=0, progress=False)
    rows = [json.loads(line) for line in (tmp_path / "out" / "train_one_right.jsonl").read_text().splitlines()]
    assert abs(sum(r["right_a"] for r in rows) - len(rows) / 2) <= 0.5


@needs_sandbox
def test_candidates_from_a_file_are_judged(tmp_path):
    path = write(tmp_path / "p.jsonl", [{**DOUBLE, "canonical_solution": ""}])
    texts = ["    return x * 2 ** n\n", "```python\ndef double(x, n=1):\n    return x << n\n```", "    import os; os._exit(0)", "    return x"]
    candidates = write(tmp_path / "c.jsonl", [{"task_id": "t/0", "completion": t} for t in texts])
    manifest = build_pairs(path, tmp_path / "out", candidates=candidates, validation=0, progress=False)
    assert manifest["candidates"] == {"file": {"died": 1, "passed": 2, "wrong": 1}}
    with pytest.raises(ValueError, match="no solutions"):
        build_pairs(path, tmp_path / "none", progress=False)


class Endpoint(BaseHTTPRequestHandler):
    "An OpenAI-compatible server whose third reply is a 429, and which counts what it is asked."

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        n = len(self.server.asked)
        code = "return x * 2 ** n" if n % 2 else "return x"
        body = {
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"```python\ndef double(x, n=1):\n    {code}\n```"}}]
        }
        data = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", **body} if n != 3 else {"error": {"message": "slow down"}}
        ).encode()
        self.send_response(429 if n == 3 else 200)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), "Retry-After": "0"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@needs_sandbox
def test_solutions_are_sampled_from_an_endpoint_and_paid_for_once(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        path, url = write(tmp_path / "p.jsonl", [DOUBLE]), f"http://127.0.0.1:{server.server_port}/v1"
        argv = ["code-pairs", str(path), "--out", str(tmp_path / "out"), "--model", "m", "--base-url", url, "--samples", "6", "--mutants", "0"]
        assert main(argv) == 0
        assert len(server.asked) == 7 and server.asked[0]["messages"][0]["content"].count("function double") == 1  # six, and one again after the 429
        first = contents(tmp_path / "out")
        assert main(argv) == 0 and len(server.asked) == 7 and contents(tmp_path / "out") == first
        assert "secret" not in "".join(first.values())
    finally:
        server.shutdown()
        server.server_close()
    assert main([*argv[:-3], "7", *argv[-2:]]) == 2  # nobody answers: a sentence


def test_without_a_key_or_an_endpoint_a_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = write(tmp_path / "p.jsonl", [DOUBLE])
    assert main(["code-pairs", str(path), "--out", str(tmp_path / "out"), "--model", "m"]) == 2
    assert "OPENAI_API_KEY" in (err := capsys.readouterr().err) or "bubblewrap" in err


@needs_sandbox
def test_solutions_of_a_local_model(tmp_path):
    path = write(tmp_path / "p.jsonl", [DOUBLE])
    manifest = build_pairs(path, tmp_path / "out", model="running_sums", local=True, samples=2, n_mutants=2, progress=False)
    assert sum(manifest["candidates"]["sampled"].values()) in (1, 2) and "passed" not in manifest["candidates"]["sampled"]


@needs_sandbox
def test_killed_at_any_moment_it_goes_on_to_the_same_files(tmp_path):
    "SIGKILL again and again; no finished run is repeated, and the files are those of an unbroken run."
    path = write(tmp_path / "p.jsonl", [{**DOUBLE, "task_id": f"t/{i}"} for i in range(6)])
    argv = [*RUN, "code-pairs", str(path), "--mutants", "5", "--jobs", "2", "--out"]
    subprocess.run([*argv, str(tmp_path / "whole")], check=True, capture_output=True)
    runs, kills = tmp_path / "broken" / "runs.jsonl", 0
    for stop_at in (3, 9, 20):
        process = subprocess.Popen([*argv, str(tmp_path / "broken")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not runs.exists() or runs.read_text().count("\n") < stop_at):
            time.sleep(0.005)
        process.kill()
        kills += process.wait() != 0
    assert kills == 3
    subprocess.run([*argv, str(tmp_path / "broken")], check=True, capture_output=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "broken")
    keys = [json.loads(line)["key"] for line in runs.read_text().splitlines()]
    assert len(keys) == len(set(keys))


@needs_sandbox
def test_humaneval_agrees_with_a_plain_run(shared, tmp_path):
    "Every reference solution passes; a mutant fails exactly where the tests catch it, as a plain process without our sandbox finds."
    problems = read_problems(shared / "code" / "humaneval.jsonl")
    assert len(problems) == 164
    for problem in problems[::14]:
        for c in made_here(problem, n_mutants=2, seed=1):
            code = f"import random; random.seed(0)\n{c.source}\n{problem.test}\ncheck({problem.entry_point})\nprint('PASS')"
            try:
                plain = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=10).stdout.endswith("PASS\n")
            except subprocess.TimeoutExpired:
                plain = False
            assert problem.judge(c.source, Sandbox()).passed == plain, (c, plain)
            assert plain or c.origin == "mutant"

"Evaluation: kills, bad files, bad endpoints, the three engines, and the numbers against brute force."

import itertools
import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rephrase import Server
from torch.testing import assert_close

from grpo_repro.benchmarks import BENCHMARKS, Problem, load_benchmark, to_problem, unreadable
from grpo_repro.cli import main
from grpo_repro.evaluate import bootstrap, compare, interval, majority
from grpo_repro.rewards import MathGrader
from grpo_repro.samples import EvalConfig, batches, draw_samples, evaluate, grade_file, grade_samples, read_samples
from grpo_repro.tasks import running_sums


def sums(folder, count=24):
    path = folder / "sums.jsonl"
    path.write_text("".join(json.dumps({"id": i, "problem": r["prompt"], "answer": r["answer"]}) + "\n" for i, r in enumerate(running_sums(count, seed=5))))
    return path


def config(folder, **changes):
    options = dict(n=4, k="1,4", template="{problem}", temperature=1.0, max_new_tokens=40, dtype="float32", device="cpu", batch=8, out=str(folder / "run"))
    return EvalConfig(**{"model": "running_sums", "benchmarks": str(sums(folder)), **options, **changes})


KILLED = """
import sys, time
from grpo_repro import samples
real = samples.hf_engine
def slow(config):
    answers = real(config)
    return lambda *a: (time.sleep(0.1), answers(*a))[1]
samples.hf_engine = slow
samples.evaluate(samples.EvalConfig(**eval(sys.argv[1])), progress=False)
"""


def test_killed_five_times_at_random_it_ends_with_the_same_files(tmp_path):
    whole = config(tmp_path, out=str(tmp_path / "whole"))
    report = evaluate(whole, progress=False)
    again = config(tmp_path, out=str(tmp_path / "killed"))
    rng, counts = random.Random(3), []
    argv = [sys.executable, "-c", KILLED, repr(vars(again))]
    samples = tmp_path / "killed" / "samples.jsonl"
    for _ in range(5):
        process = subprocess.Popen(argv, stderr=subprocess.PIPE)
        seen, begun = len(read_samples(samples)), time.time()
        while process.poll() is None and len(read_samples(samples)) < seen + 8 and time.time() - begun < 60:
            time.sleep(0.02)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        counts.append(len(read_samples(samples)))
        with samples.open("ab") as file:
            file.write(b'{"benchmark": "sums", "id": "0", "ind')  # what a kill in the middle of a write leaves
    assert 0 < counts[0] < counts[-1] < 96
    assert subprocess.run(argv, capture_output=True).returncode == 0
    for name in ("samples.jsonl", "graded.jsonl", "report.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert json.loads((tmp_path / "whole" / "report.json").read_text()) == report


def test_a_sample_does_not_depend_on_the_batch_or_on_n(tmp_path):
    one = config(tmp_path, out=str(tmp_path / "one"))
    evaluate(one, progress=False)
    other = config(tmp_path, n=6, k="1", batch=5, out=str(tmp_path / "other"))
    evaluate(other, progress=False)
    first, second = (read_samples(tmp_path / name / "samples.jsonl") for name in ("one", "other"))
    assert len(second) == 144 and all(second[key]["response"] == row["response"] for key, row in first.items())
    assert len({r["response"] for r in first.values()}) > 40


def test_more_samples_and_benchmarks_go_into_the_same_folder(tmp_path):
    evaluate(config(tmp_path), progress=False)
    kept = read_samples(tmp_path / "run" / "samples.jsonl")
    report = evaluate(config(tmp_path, n=8, k="1,8"), progress=False)
    assert report["sums"]["n"] == 8 and "pass@8" in report["sums"]
    assert read_samples(tmp_path / "run" / "samples.jsonl").items() >= kept.items()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n": 4, "k": "1,8"}, "pass@8 needs at least 8 samples of each problem, and n = 4"),
        ({"k": "one"}, "numbers with commas"),
        ({"k": "0,1"}, "pass@"),
        ({"temperature": 0.0}, "all samples of a problem are equal"),
        ({"template": "Solve:"}, "write {problem}"),
        ({"max_new_tokens": 100_000}, "lower --max-new-tokens"),
        ({"benchmarks": "math5000"}, "known by name are math500"),
        ({"benchmarks": "nowhere.jsonl"}, "no such file"),
        ({"benchmarks": "math500", "data_dir": "/nowhere"}, "neither /nowhere/math500.jsonl"),
        ({"model": "/nowhere/model"}, "no such folder"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_with_a_way_out(changes, says, tmp_path, capsys):
    c = config(tmp_path, **changes)
    with pytest.raises(ValueError, match=says.replace("{", "\\{").replace("@", ".")):
        evaluate(c, progress=False)


def test_a_folder_of_another_run_or_model_is_refused(tmp_path):
    evaluate(config(tmp_path), progress=False)
    with pytest.raises(ValueError, match="was begun with seed = 0, and this is 1"):
        evaluate(config(tmp_path, seed=1), progress=False)
    samples = tmp_path / "run" / "samples.jsonl"
    samples.write_text(samples.read_text().replace('"model": "running_sums"', '"model": "other"', 5))
    with pytest.raises(ValueError, match="mixes samples of other and running_sums"):
        evaluate(config(tmp_path), progress=False)
    samples.write_text(samples.read_text().replace('"model": "running_sums"', '"model": "other"'))
    with pytest.raises(ValueError, match="has samples of other, and this is running_sums: give another --out"):
        evaluate(config(tmp_path), progress=False)


def test_weights_that_changed_under_the_same_name_are_another_model(tmp_path):
    from grpo_repro.data import load_policy
    from grpo_repro.samples import fingerprint
    from grpo_repro.tasks import save_policy

    model, tokenizer = load_policy("running_sums")
    save_policy(model, tokenizer, tmp_path / "m")
    before = fingerprint(str(tmp_path / "m"))
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    save_policy(model, tokenizer, tmp_path / "m")
    assert fingerprint(str(tmp_path / "m")) != before


def test_a_benchmark_that_was_edited_is_noticed(tmp_path):
    c = config(tmp_path)
    evaluate(c, progress=False)
    path = tmp_path / "sums.jsonl"
    path.write_text(path.read_text().replace('"problem": "', '"problem": "1+', 1))
    with pytest.raises(ValueError, match="sums '0' was another question when its samples were drawn: give another --out"):
        evaluate(c, progress=False)


def test_a_template_may_hold_braces_and_so_may_a_problem():
    problem = Problem("b", "1", "What is $\\frac{1}{2}$ of {4}?", "2")
    assert problem.prompt("{problem} Answer in \\boxed{}.") == "What is $\\frac{1}{2}$ of {4}? Answer in \\boxed{}."
    assert problem.prompt().startswith(problem.problem) and problem.prompt().endswith("within \\boxed{}.")


def test_damage_in_the_middle_is_named_and_doubles_count_once(tmp_path):
    evaluate(config(tmp_path), progress=False)
    samples = tmp_path / "run" / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join([*lines[:7], lines[7][:30] + "\n", *lines[8:]]))
    with pytest.raises(ValueError, match="line 8: not a sample"):
        evaluate(config(tmp_path), progress=False)
    samples.write_text("".join([*lines, *lines[:3]]))
    with pytest.warns(UserWarning, match="3 samples are there twice"):
        again = evaluate(config(tmp_path), progress=False)
    samples.write_text("".join(lines))
    assert again == evaluate(config(tmp_path), progress=False)
    samples.write_text("".join(lines).rstrip("\n"))  # whole, but for its end of line
    assert again == evaluate(config(tmp_path), progress=False) and samples.read_text() == "".join(lines)


# ---- benchmarks -------------------------------------------------------------------------------------------------


def test_the_real_benchmarks_load_and_their_unreadable_references_are_known(shared):
    grader, found = MathGrader(workers=2), {}
    sizes = {}
    for name in sorted(set(BENCHMARKS) - {"gpqa_diamond"}):
        problems = load_benchmark(name, data_dir=shared / "benchmarks")
        sizes[name] = len(problems)
        found[name] = [p.answer for p in unreadable(problems, grader.compare)]
    grader.close()
    assert sizes == {"aime24": 30, "aime25": 30, "amc23": 40, "gsm8k": 1319, "math500": 500, "minerva_math": 272, "olympiadbench": 675}
    assert {k: v for k, v in found.items() if v} == {
        "minerva_math": ["\\frac{dM}{dt}=\\frac{10^{5} L_{\\odot}}{0.007 c^{2} M_{\\odot}^{6}} M^{6}", "E_{1},E_{2}"]
    }


def test_rows_that_cannot_be_used_are_named(tmp_path):
    rows = [{"id": 1, "problem": "1+1?", "answer": "2"}, {"id": 2, "problem": "1+2?", "answer": None}]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(ValueError, match="benchmark 'mine', row 1: no answer"):
        load_benchmark(str(path))
    path.write_text(json.dumps({"id": 1, "problem": " ", "answer": "2"}) + "\n")
    with pytest.raises(ValueError, match="row 0: no question in 'problem'"):
        load_benchmark(str(path))
    with pytest.raises(ValueError, match="`error` is 'wide'"):
        to_problem({"problem": "x", "answer": ["1"], "error": "wide"}, 0, "olympiadbench", BENCHMARKS["olympiadbench"])
    with pytest.raises(ValueError, match="needs `Correct Answer`"):
        to_problem({"Question": "x", "Correct Answer": "1", "Incorrect Answer 1": ""}, 0, "gpqa_diamond", BENCHMARKS["gpqa_diamond"])


def test_an_unreadable_reference_is_left_out_named_failed_or_kept(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "good", "problem": "3+5=", "answer": "8"}\n{"id": "bad", "problem": "1+1=", "answer": "\\\\frac{"}\n')
    c = config(tmp_path, benchmarks=str(path))
    report = evaluate(c, progress=False)
    assert report["mine"]["problems"] == 1 and report["mine"]["excluded"] == ["bad"]
    with pytest.raises(ValueError, match="references of 1 problems cannot be read: mine 'bad'"):
        evaluate(config(tmp_path, benchmarks=str(path), unreadable="fail"), progress=False)
    assert evaluate(config(tmp_path, benchmarks=str(path), unreadable="keep"), progress=False)["mine"]["problems"] == 2


# ---- numbers ----------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("ab") | st.none(), min_size=1, max_size=6), st.data())
@settings(max_examples=100, deadline=None)
def test_majority_against_counting_all_draws(answers, data):
    good = data.draw(st.sampled_from("ab"))
    right = [a == good for a in answers]
    voted = [a for a in answers if a is not None]
    most = max(map(voted.count, voted)) if voted else 0
    top = {a for a in voted if voted.count(a) == most}
    assert majority(answers, right) == (sum(a == good for a in top) / len(top) if top else 0.0)


def test_bootstrap_equals_all_resamples_of_a_small_set():
    values = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    every = torch.tensor([sum(x) / 3 for x in itertools.product(values.tolist(), repeat=3)], dtype=torch.float64)
    means = bootstrap(values, resamples=40_000, seed=1)
    assert_close(means.mean(), every.mean(), atol=5e-3, rtol=0)
    assert_close(means.std(), every.std(correction=0), atol=5e-3, rtol=0)
    low, high = interval(values)
    assert 0 <= low <= values.mean() <= high <= 1
    assert_close(bootstrap(torch.stack([values, values * 2], 1), seed=3)[:, 1], 2 * bootstrap(values, seed=3))


def test_a_paired_comparison_is_symmetric_and_sees_no_difference_where_there_is_none():
    x, y = torch.rand(2, 50, generator=torch.Generator().manual_seed(0))
    forth, back = compare(x, y), compare(y, x)
    assert abs(forth.difference + back.difference) < 1e-12 and abs(forth.low + back.high) < 1e-2 and abs(forth.p - back.p) < 0.02
    assert compare(x, x) == (0.0, 0.0, 0.0, 1.0) and compare(x, x + 0.1).p < 0.001
    with pytest.raises(ValueError, match="same problems"):
        compare(x, y[:10])


def test_a_missing_sample_is_not_counted_without():
    problem, grader = Problem("b", "1", "?", "5"), MathGrader(workers=1)
    with pytest.raises(ValueError, match="1 of 2 samples are missing: run the same command again"):
        grade_samples([problem], {("b", "1", 0): {"response": "5", "tokens": 1, "truncated": False}}, 2, grader)


def test_the_last_number_of_a_response_that_was_cut_off_is_no_answer():
    problem, grader = Problem("b", "1", "?", "3"), MathGrader(workers=1)
    said = ["so x^2 + 3", "so x^2 + 3", "it is \\boxed{3}, and", "the answer is 3, since we"]
    rows = {("b", "1", i): {"response": text, "tokens": 9, "truncated": i > 0} for i, text in enumerate(said)}
    (result,) = grade_samples([problem], rows, 4, grader)
    assert [rows["b", "1", i]["correct"] for i in range(4)] == [True, False, True, True] and result.unanswered == 0.25


@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_batches_cover_the_grid_once_and_are_never_too_large(count, n, size):
    problems = [Problem("b", str(i), "?", "1") for i in range(count)]
    cells = [(p.id, i) for some, indices in batches(problems, n, size) for p in some for i in indices]
    assert sorted(cells) == sorted((p.id, i) for p in problems for i in range(n))
    assert all(len(some) * len(indices) <= size for some, indices in batches(problems, n, size))


# ---- endpoints --------------------------------------------------------------------------------------------------


def knows_it(body):
    "Eight, now and then nine, by the seed."
    return f"It is \\boxed{{{8 + body['seed'] % 2}}}."


def test_an_endpoint_that_fails_half_the_time_gives_every_sample_once(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_repro.endpoint.Endpoint.__init__.__kwdefaults__", {"base_url": None, "timeout": 2.0, "retries": 9, "pause": 0.01, "patience": 40})
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"id": i, "problem": f"{i} + 8 - {i}?", "answer": "8"}) + "\n" for i in range(10)))
    c = config(tmp_path, model="m", benchmarks=str(path), engine="endpoint")
    with Server(0.5, kinds=("429", "500", "cut", "not utf-8"), say=knows_it) as server:
        c.base_url = server.url
        report = evaluate(c, progress=False)
        asked = len(server.log)
        assert evaluate(c, progress=False) == report and len(server.log) == asked, "nothing is asked twice"
    assert asked > 45 and report["mine"]["n"] == 4 and 0.2 < report["mine"]["avg@4"]["value"] < 0.8
    seeds = {b["seed"] for b in server.bodies}
    assert len(seeds) == 40 and all(b["max_tokens"] == 40 and b["temperature"] == 1.0 for b in server.bodies)
    (tmp_path / "run" / "samples.jsonl").write_text("")
    (tmp_path / "run" / "report.json").unlink()
    with Server(1.0, kinds=("500",), say=knows_it) as down:
        c.base_url = down.url
        assert evaluate(c, progress=False) == report, "the replies were paid for, and kept"
        assert not down.log


def test_what_an_endpoint_never_answers_is_said_and_not_counted_as_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "grpo_repro.endpoint.Endpoint.__init__.__kwdefaults__", {"base_url": None, "timeout": 2.0, "retries": 1, "pause": 0.01, "patience": 1000}
    )
    monkeypatch.setattr("openai.AsyncOpenAI.max_retries", 0, raising=False)
    c = config(tmp_path, model="m", engine="endpoint", n=1, k="1")
    refuses = lambda body: (500, "too hard") if body["seed"] % 3 == 0 else None
    with Server(status=refuses, say=knows_it) as server:
        c.base_url = server.url
        with pytest.raises(ValueError, match="samples are missing: run the same command again"):
            evaluate(c, progress=False)
    assert 0 < len(read_samples(tmp_path / "run" / "samples.jsonl")) < 24
    with Server(say=knows_it) as server:
        c.base_url = server.url
        assert evaluate(c, progress=False)["sums"]["problems"] == 24


def test_the_key_is_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    c = config(tmp_path, model="m", engine="endpoint", n=1, k="1")
    with Server(say=knows_it) as server:
        c.base_url = server.url
        evaluate(c, progress=False)
    assert not any(b"very-secret" in p.read_bytes() for p in (tmp_path / "run").iterdir())


# ---- vLLM, for real on the CPU ----------------------------------------------------------------------------------

VLLM = """
import sys
from grpo_repro import samples
if __name__ == "__main__":
    runs = [samples.EvalConfig(**settings) for settings in eval(sys.argv[1])]
    engine = samples.vllm_engine(runs[0])
    samples.vllm_engine = lambda config: engine
    for run in runs:
        samples.evaluate(run, progress=False)
"""


def test_vllm_answers_greedily_as_transformers_does_and_samples_the_same_again(tmp_path, vllm_env):
    (tmp_path / "run.py").write_text(VLLM)
    greedy = config(tmp_path, n=1, k="1", temperature=0.0, engine="vllm", out=str(tmp_path / "greedy"))
    runs = [vars(config(tmp_path, n=8, k="1,8", engine="vllm", out=str(tmp_path / name))) for name in ("one", "two")]
    done = [
        subprocess.run([sys.executable, str(tmp_path / "run.py"), repr(c)], env=vllm_env, capture_output=True, text=True, timeout=300)
        for c in ([vars(greedy)], runs)
    ]
    assert all(d.returncode == 0 for d in done), [d.stderr[-3000:] for d in done]
    evaluate(config(tmp_path, n=1, k="1", temperature=0.0, out=str(tmp_path / "hf")), progress=False)
    rows = {name: (tmp_path / name / "samples.jsonl").read_bytes() for name in ("greedy", "hf", "one", "two")}
    assert rows["greedy"] == rows["hf"]
    assert rows["one"] == rows["two"] and len({json.loads(x)["response"] for x in rows["one"].splitlines()}) > 48
    assert (tmp_path / "one" / "report.json").read_bytes() == (tmp_path / "two" / "report.json").read_bytes()


# ---- the command line -------------------------------------------------------------------------------------------


def test_eval_compare_and_grade_as_commands(tmp_path, capsys):
    common = [
        "--benchmarks",
        str(sums(tmp_path)),
        "--n",
        "4",
        "--k",
        "1,4",
        "--template",
        "{problem}",
        "--max-new-tokens",
        "40",
        "--dtype",
        "float32",
        "--device",
        "cpu",
    ]
    for name, temperature in (("cool", "0.5"), ("hot", "1.5")):
        assert main(["eval", "--model", "running_sums", *common, "--temperature", temperature, "--out", str(tmp_path / name)]) == 0
    said = capsys.readouterr().out
    assert "pass@4" in said and "with 95% intervals over problems" in said
    assert main(["compare", str(tmp_path / "hot"), str(tmp_path / "cool")]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("sums"))
    assert "24" in line and "+" in line and "p = " in line
    assert main(["grade", str(tmp_path / "hot" / "graded.jsonl"), "--out", str(tmp_path / "again.jsonl")]) == 0
    assert "verdicts differ" not in capsys.readouterr().out, "the same grader gives the same verdicts"
    assert main(["compare", str(tmp_path / "hot"), str(tmp_path / "nowhere")]) == 2 and "finish first" in capsys.readouterr().err
    assert main(["eval", "--model", "running_sums", *common, "--k", "1,64"]) == 2 and "pass@64 needs" in capsys.readouterr().err


def test_grade_keeps_rows_and_order_and_writes_nothing_where_a_line_is_bad(tmp_path):
    rows = [{"answer": str(i % 7), "response": f"\\boxed{{{i % 5}}}", "more": {"i": i}, "text": "é"} for i in range(12_001)]
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    counts = grade_file(path, out, progress=False)
    graded = [json.loads(line) for line in out.open(encoding="utf-8")]
    assert [{k: v for k, v in g.items() if k != "correct"} for g in graded] == rows
    assert [g["correct"] for g in graded] == [i % 7 == i % 5 for i in range(12_001)] and counts["right"] == sum(g["correct"] for g in graded)
    before = out.read_bytes()
    for bad, says in (
        ('{"answer": "1"', "line 12002: not JSON"),
        ('{"response": "1"}', "no 'answer'"),
        ('{"answer": "1", "response": 5}', "no text in 'response'"),
        ("[1]", "no 'answer'"),
    ):
        path.write_text("".join(json.dumps(r) + "\n" for r in rows) + bad + "\n")
        with pytest.raises(ValueError, match=says):
            grade_file(path, out, progress=False)
        assert out.read_bytes() == before and not (tmp_path / "out.jsonl.tmp").exists()
    path.write_text('{"answer": "\\\\frac{", "response": "1"}\n')
    assert grade_file(path, out, progress=False)["unreadable"] == 1 and json.loads(out.read_text())["correct"] is None
    with pytest.raises(ValueError, match="line 1: the reference"):
        grade_file(path, out, unreadable="fail", progress=False)
    with pytest.raises(ValueError, match="is the input"):
        grade_file(path, path, progress=False)


def test_drawing_twice_draws_once(tmp_path):
    c = config(tmp_path)
    (tmp_path / "run").mkdir()
    problems = load_benchmark(c.benchmarks)
    first = draw_samples(c, problems, progress=False)
    c.model = "running_sums"
    stamp = (tmp_path / "run" / "samples.jsonl").stat().st_mtime_ns
    assert draw_samples(c, problems, progress=False) == first and (tmp_path / "run" / "samples.jsonl").stat().st_mtime_ns == stamp

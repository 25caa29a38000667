"The command line as a user meets it: processes, exit codes, sentences."

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from grpo_repro.cli import main
from grpo_repro.config import load_config, recipes
from grpo_repro.logbook import read_metrics
from grpo_repro.verifier_sums import RATED, rated_pairs

RUN = [sys.executable, "-c", "import sys; from grpo_repro.cli import main; sys.exit(main(sys.argv[1:]))"]
TINY = ["--questions-per-step", "4", "--group-size", "4", "--eval-questions", "10", "--no-tensorboard"]


def test_train_ends_in_a_table_a_figure_and_a_model(tmp_path, capsys):
    assert main(["train", "embedded", *TINY, "--steps", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "before" in out and "zero-variance groups" in out and "curves.png" in out
    assert {"metrics.jsonl", "curves.png", "config.yaml", "evaluations.json", "model", "checkpoints"} <= set(os.listdir(tmp_path))
    assert load_config(str(tmp_path / "config.yaml")).steps == 2


def test_a_killed_run_resumes_to_the_same_end(tmp_path):
    "SIGKILL in the middle, then --resume: the log is that of an uninterrupted run."
    common = ["train", *TINY, "--steps", "12", "--save-every", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = subprocess.run([*RUN, *common, "--out", str(tmp_path / "a")], env=env, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    log = tmp_path / "b" / "metrics.jsonl"
    process = subprocess.Popen([*RUN, *common, "--out", str(tmp_path / "b")], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 120
    while time.time() < deadline and not (log.exists() and len(read_metrics(log)) >= 5):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(read_metrics(log)) < 12
    again = subprocess.run([*RUN, *common, "--out", str(tmp_path / "b"), "--resume"], env=env, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    strip = lambda rows: [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows]
    assert strip(read_metrics(tmp_path / "a" / "metrics.jsonl")) == strip(read_metrics(log))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["train", "nothing"], "recipes are corpo_qwen3_8b, embedded"),
        (["train", "--advantage", "ppo"], "known are grpo"),
        (["train", "--model", "/no/such/model"], "no such folder"),
        (["train", "--data", "no.jsonl"], "no such file"),
        (["train", "--group-size", "1"], "at least 2 responses"),
        (["diagnose", "no.jsonl", "--group", "g", "--reward", "r"], "no such file"),
        (["sweep", "nothing"], "sweeps are"),
        (["convert-smollm2", "--out", "x", "--gguf", "no.gguf"], "no such file"),
    ],
)
def test_mistakes_end_in_one_sentence(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err


def test_unknown_command_and_help(capsys):
    assert main(["fly"]) == 2
    assert "diagnose" in capsys.readouterr().err
    assert main([]) == 0


def test_a_misspelt_setting_is_suggested(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({"grup_size": 4}))
    with pytest.raises(ValueError, match="did you mean 'group_size'"):
        load_config(str(path))


def test_recipes_load_and_check():
    from grpo_repro.config import check_config

    assert "embedded" in recipes()
    for name in recipes():
        check_config(load_config(name))


def test_sweep_plans_are_checked_before_the_first_run(tmp_path):
    from grpo_repro.sweep import plan, sweeps

    for name in sweeps():
        assert plan(name, tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump({"base": "embedded", "seeds": [0], "methods": {"A": {"advantage": "corpo"}}}))
    with pytest.raises(ValueError, match="method 'A'.*needs threshold"):
        plan(str(bad), tmp_path)


def test_json_output_is_strict(tmp_path, capsys):
    log = tmp_path / "one.jsonl"
    log.write_text('{"q": 1, "r": 1}\n')
    assert main(["diagnose", str(log), "--group", "q", "--reward", "r", "--json"]) == 0
    d = json.loads(capsys.readouterr().out, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert d["groups"] == 1


TA_RECIPES = ["ta_grpo_qwen3_1.7b", "ta_grpo_qwen3_4b", "ta_grpo_llama3.2_1b", "ta_grpo_llama3.2_3b"]
EP_RECIPES = ["ep_grpo_qwen2.5_3b", "ep_grpo_qwen2.5_7b"]


@pytest.mark.parametrize("name", [*EP_RECIPES, *TA_RECIPES, "corpo_qwen3_8b"])
def test_each_number_of_a_paper_s_recipe_says_whose_it_is(name):
    lines = recipes()[name].read_text().splitlines()
    for line in lines:
        setting, _, value = line.partition(":")
        if not line.startswith("#") and setting != "out" and any(c.isdigit() for c in value.split("#")[0]):
            assert "# source" in line or "# choice" in line, line
    assert any("source" in line for line in lines) and any("choice" in line for line in lines)


@pytest.mark.parametrize("name", EP_RECIPES)
def test_a_paper_s_recipe_runs_with_stand_ins_for_model_and_data(name, tmp_path, shared):
    "What a GPU node would do, made small: the embedded policy, local questions, two steps."
    data = str(shared / "train" / "math_train_4500.jsonl")
    stand_in = ["--model", "running_sums", "--data", data, "--eval-data", data, "--system-prompt", "None", "--device", "cpu", "--no-tensorboard"]
    small = ["--steps", "2", "--questions-per-step", "2", "--group-size", "2", "--max-new-tokens", "8", "--eval-questions", "2"]
    assert main(["train", name, *stand_in, *small, "--out", str(tmp_path)]) == 0
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert len(rows) == 2 and rows[0]["ep/progress_share"] in (0.0, None)


@pytest.mark.parametrize("name", TA_RECIPES[::3])
def test_ta_grpo_s_recipes_and_their_baselines_run_with_stand_ins(name, tmp_path):
    data = tmp_path / "questions.jsonl"
    rows = [{"problem": f"{a}+{b}=", "answer": str(a + b), "rephrasings": [f"add {a}, {b}:", f"{b} after {a}="]} for a, b in ((1, 2), (3, 4), (5, 0))]
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    stand_in = ["--model", "rephrased_sums", "--data", str(data), "--eval-data", str(data), "--system-prompt", "None", "--device", "cpu", "--dtype", "float32"]
    small = [
        "--steps",
        "2",
        "--questions-per-step",
        "2",
        "--group-size",
        "2",
        "--max-new-tokens",
        "8",
        "--eval-samples",
        "2",
        "--log-responses",
        "1",
        "--no-tensorboard",
    ]
    for method, changes in {"ta": [], "grpo": ["--rephrasings", "None"], "by_wording": ["--no-pooled"]}.items():
        assert main(["train", name, *stand_in, *small, *changes, "--out", str(tmp_path / method)]) == 0
        metrics = read_metrics(tmp_path / method / "metrics.jsonl")
        assert len(metrics) == 2 and metrics[0]["groups/sampled"] == {"ta": 2, "grpo": 2, "by_wording": 6}[method]
        assert len(read_metrics(tmp_path / method / "responses.jsonl")) == 2 * (4 if method == "grpo" else 12)
    assert main(["diversity", str(tmp_path / "ta" / "responses.jsonl")]) == 0


def test_the_verifier_s_recipe_runs_with_stand_ins(tmp_path):
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rated_pairs(6, RATED["verifier_sums"], seed=0)))
    stand_in = ["--model", "verifier_sums", "--data", str(data), "--eval-data", str(data), "--device", "cpu", "--dtype", "float32", "--no-tensorboard"]
    small = ["--steps", "2", "--questions-per-step", "2", "--max-new-tokens", "60", "--eval-questions", "4", "--eval-samples", "4"]
    for advantage in ("corpo", "grpo", "static"):
        assert main(["train", "corpo_qwen3_8b", *stand_in, *small, "--advantage", advantage, "--out", str(tmp_path / advantage)]) == 0
        rows = read_metrics(tmp_path / advantage / "metrics.jsonl")
        assert len(rows) == 2 and rows[0]["advantage/r_loss"] is not None
        assert advantage == "grpo" or rows[0]["advantage/failed_but_reinforced"] == 0


def test_another_estimator_leaves_the_recipe_s_options_behind_but_not_the_user_s(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"advantage": "ep_grpo", "advantage_kwargs": {"gate": 2.0}, "steps": 1, "out": str(tmp_path / "run")}))
    assert main(["train", str(tmp_path / "recipe.yaml"), *TINY, "--advantage", "grpo"]) == 0
    assert load_config(str(tmp_path / "run" / "config.yaml")).advantage_kwargs == {}
    assert main(["train", str(tmp_path / "recipe.yaml"), *TINY, "--advantage", "grpo", "--advantage-kwargs.gate", "3"]) == 2
    assert "no option gate" in capsys.readouterr().err
    assert main(["train", *TINY, "--out", str(tmp_path), "--advantage", "dr_grpo", "--advantage-kwargs", "gate", "3"]) == 2
    assert "no option gate" in capsys.readouterr().err


def test_polarity_wants_the_runs_of_its_sweep(tmp_path, capsys):
    assert main(["polarity", "ep_grpo", "--out", str(tmp_path)]) == 2
    assert "has not finished: call grpo-repro sweep" in capsys.readouterr().err
    assert main(["polarity", "first_run", "--out", str(tmp_path)]) == 2
    assert "has no checkpoints" in capsys.readouterr().err

"Logs that trainers wrote, recognised, and the trends in them. (verl's own are in test_verl.py, TRL's in test_trl.py.)"

import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_repro.cli import main
from grpo_repro.diagnostics import LogError, diagnose
from grpo_repro.logs import log_files, plot_trends, read_logs, recognise, trend_text, trends


def write(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def ours(steps=(1, 2, 3), groups=4, size=4, seed=0):
    rng = random.Random(seed)
    return [
        {"step": s, "group": q, "response": "x" * rng.randrange(9), "reward": float(rng.random() < q / groups)}
        for s in steps
        for q in range(groups)
        for _ in range(size)
    ]


def test_a_run_of_our_own_goes_through_without_options(tmp_path, capsys):
    small = ["--steps", "4", "--questions-per-step", "4", "--group-size", "4", "--eval-questions", "4", "--no-tensorboard", "--log-responses", "2"]
    assert main(["train", *small, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path / "run" / "responses.jsonl"), "--json", "--plot", str(tmp_path / "d.png")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["writer"] == "grpo-repro" and [t["step"] for t in said["trends"]] == [2, 4] and said["groups"] == 8 and said["threshold"] == 1.0
    assert (tmp_path / "d.png").stat().st_size > 5000 and (tmp_path / "d_steps.png").stat().st_size > 5000
    assert main(["diagnose", str(tmp_path / "run" / "responses.jsonl")]) == 0
    assert "silent" in capsys.readouterr().out.splitlines()[-3]


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_trends_are_the_diagnoses_of_each_step(tmp_path_factory, seed, steps, groups, size):
    rows = ours(range(steps), groups, size, seed)
    random.Random(seed).shuffle(rows)
    log = read_logs([write(tmp_path_factory.mktemp("log") / "responses.jsonl", rows)])
    found = trends(log, threshold=1.0)
    assert [r["step"] for r in found] == list(range(steps))
    for r in found:
        here = log["steps"] == r["step"]
        _, ids = log["groups"][here].unique(return_inverse=True)
        d = diagnose(log["rewards"][here], ids, threshold=1.0)
        assert (r["groups"], r["zero_variance_share"], r["accuracy"]) == (d["groups"], pytest.approx(d["zero_variance_share"]), pytest.approx(d["accuracy"]))
        assert r["reward_mean"] == pytest.approx(d["reward_mean"])


def test_files_of_a_folder_come_in_the_order_of_their_numbers(tmp_path):
    for n in (10, 9, 100, 1):
        write(tmp_path / f"{n}.jsonl", ours((n,)))
    (tmp_path / "notes.txt").write_text("not a log")
    assert [p.name for p in log_files([tmp_path])] == ["1.jsonl", "9.jsonl", "10.jsonl", "100.jsonl"]
    log = read_logs([tmp_path / "9.jsonl", tmp_path / "1.jsonl"])
    assert log["steps"].unique().tolist() == [1, 9] and int(log["groups"].max()) == 7
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="no log in this folder"):
        read_logs([tmp_path / "empty"])


def test_several_reward_functions_are_added_and_a_row_without_any_is_unscored(tmp_path):
    rows = [
        {"step": 1, "prompt": [{"role": "user", "content": "?"}], "completion": "x", "a": a, "b": b, "advantage": 0.0}
        for a, b in ((1.0, 2.0), (None, 3.0), (None, None))
    ]
    log = read_logs([write(tmp_path / "completions.jsonl", rows)])
    assert log["layout"].reward == ("a", "b") and log["rewards"][:2].tolist() == [3.0, 3.0] and torch.isnan(log["rewards"][2])
    assert int(log["groups"].max()) == 0


def test_what_cannot_be_read_is_named(tmp_path, capsys):
    unknown = write(tmp_path / "log.jsonl", [{"question": 1, "points": 2.0}])
    assert main(["diagnose", str(unknown)]) == 2
    assert "columns 'question', 'points': give --group and --reward" in capsys.readouterr().err
    assert main(["diagnose", str(unknown), "--group", "question"]) == 2 and "together" in capsys.readouterr().err
    assert main(["diagnose", str(unknown), "--group", "question", "--reward", "points"]) == 0
    mixed = write(tmp_path / "mixed.jsonl", [*ours((1,), 1, 2), {"input": "?", "output": "x", "score": 1.0, "step": 2}])
    with pytest.raises(LogError, match="mixed.jsonl, line 3: no column 'group'"):
        read_logs([mixed])
    assert read_logs([mixed], skip_bad=True)["skipped"] == 1
    odd = write(tmp_path / "odd.jsonl", [*ours((1,), 1, 2), {"step": "two", "group": 1, "reward": 0.0, "response": "x"}])
    with pytest.raises(LogError, match="line 3: step or length cannot be read"):
        read_logs([odd])
    assert recognise({"step": 1, "prompt": "?", "completion": "x", "advantage": 0.0}) is None, "no reward in it"


def test_the_figure_tells_what_it_shows_and_ordinal_rewards_need_a_threshold(tmp_path):
    rows = [r | {"reward": r["reward"] * 0.3} for r in ours(range(40))]
    log = read_logs([write(tmp_path / "responses.jsonl", rows)])
    without = trends(log)
    assert all(r["accuracy"] is None for r in without) and all(r["accuracy"] is not None for r in trends(log, threshold=0.2))
    labels = [t.get_text() for t in plot_trends(without).axes[0].get_legend().get_texts()]
    assert labels == ["silent groups", "mean reward"]
    text = trend_text(without, 5).splitlines()
    assert len(text) == 7 and text[1].split()[0] == "0" and text[5].split()[0] == "39" and text[-1] == "(5 of 40 steps)"

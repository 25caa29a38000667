"diagnose on anyone's log: formats, bad lines, and estimates that are what they say."

import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_repro.cli import main
from grpo_repro.diagnostics import LogError, diagnose, read_log, zero_variance_at

ROWS = [{"uid": q, "score": s, "text": "x" * n} for q, s, n in [("a", 1.0, 4), ("a", 0.0, 6), ("b", 1.0, 2), ("b", 1.0, 8), ("c", None, 1), ("c", 0.0, 1)]]


def write(path):
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(r) for r in ROWS))
    elif path.suffix == ".csv":
        path.write_text("uid,score,text\n" + "".join(f"{r['uid']},{'' if r['score'] is None else r['score']},{r['text']}\n" for r in ROWS))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_formats_agree(tmp_path, kind):
    found = read_log(write(tmp_path / f"log{kind}"), "uid", "score", length="text")
    assert found["groups"].tolist() == [0, 0, 1, 1, 2, 2]
    assert found["rewards"][[0, 1, 2, 3, 5]].tolist() == [1.0, 0.0, 1.0, 1.0, 0.0] and math.isnan(found["rewards"][4])
    assert found["lengths"].tolist() == [4, 6, 2, 8, 1, 1]
    d = diagnose(found["rewards"], found["groups"], lengths=found["lengths"])
    assert (d["zero_variance_groups"], d["all_right_groups"], d["all_wrong_groups"], d["unscored"], d["wasted_length"]) == (2, 1, 1, 1, 12.0)


def test_the_real_log_reports_90_of_100(shared, capsys, tmp_path):
    log = str(shared / "rollouts" / "math_100x8.jsonl")
    assert main(["diagnose", log, "--group", "prompt_id", "--reward", "correct", "--json", "--plot", str(tmp_path / "d.png")]) == 0
    d = json.loads(capsys.readouterr().out)
    assert (d["groups"], d["zero_variance_groups"], d["all_right_groups"], d["all_wrong_groups"], d["wasted_rollouts"]) == (100, 90, 86, 4, 720)
    assert (tmp_path / "d.png").stat().st_size > 5000
    main(["diagnose", log, "--group", "prompt_id", "--reward", "correct"])
    assert "zero variance: 90 of 100 groups" in capsys.readouterr().out


def test_bad_lines_are_named_or_counted(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text('{"q": 1, "r": 1}\nnot json\n[1, 2]\n{"q": 1, "r": "high"}\n{"q": 1}\n{"q": 1, "r": 1e999}\n{"q": 1, "r": 0}\n')
    assert main(["diagnose", str(log), "--group", "q", "--reward", "r"]) == 2
    assert "line 2: not JSON" in capsys.readouterr().err
    found = read_log(log, "q", "r", skip_bad=True)
    assert found["skipped"] == 5 and found["rewards"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"q": 1, "r": "high"}\n', "line 1: column 'r' holds 'high'"),
        ('{"q": 1}\n', "no column 'r'; there are 'q'"),
        ("", "no readable row"),
        ('{"q": 1, "r": 1}\n[3]\n', "line 2: a JSON object"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_messages_name_what_is_wrong(tmp_path, text, match):
    log = tmp_path / "log.jsonl"
    log.write_text(text)
    with pytest.raises(LogError, match=match):
        read_log(log, "q", "r")


def test_unknown_files(tmp_path):
    with pytest.raises(LogError, match="no such file"):
        read_log(tmp_path / "none.jsonl", "q", "r")
    (tmp_path / "log.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(LogError, match="unknown kind of file"):
        read_log(tmp_path / "log.pkl", "q", "r")


@given(p=st.floats(0.02, 0.98), n=st.integers(2, 12), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_unbiased_up_to_n_and_an_upper_bound_above(p, n, seed):
    rng = random.Random(seed)
    groups = 3000
    rewards = torch.tensor([float(rng.random() < p) for _ in range(groups * n)], dtype=torch.float64)
    ids = torch.arange(groups).repeat_interleave(n)
    for g in (2, n, 2 * n):
        found = zero_variance_at(rewards, ids, g)
        truth = p**g + (1 - p) ** g
        slack = 5 * max(found["standard_error"], 1e-3)
        assert found["kind"] == ("unbiased" if g <= n else "upper bound")
        assert found["share"] > truth - slack
        if g <= n:
            assert found["share"] < truth + slack


def test_graded_rewards_count_values_not_successes():
    rewards = torch.tensor([0.1, 0.5, 0.5, 0.9, 0.2, 0.2, 0.2, 0.2])
    found = zero_variance_at(rewards.double(), torch.arange(2).repeat_interleave(4), 2)
    assert found["share"] == pytest.approx((1 / 6 + 1) / 2)


def test_failed_but_reinforced_needs_ordinal_rewards():
    d = diagnose(torch.tensor([0.6, -0.2, -0.8, -1.0] * 2), torch.arange(2).repeat_interleave(4), threshold=0.0)
    assert d["failed_but_reinforced"] == {"grpo": pytest.approx(1 / 3), "corpo": 0.0}
    assert diagnose(torch.tensor([0.3, 0.7]), torch.tensor([0, 0])).get("failed_but_reinforced") is None

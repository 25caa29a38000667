"Tables and curves from reports, against numbers computed apart."

import io
import json
import random

import pandas as pd
import pytest
import torch

from grpo_repro.cli import main
from grpo_repro.evaluate import pass_at_k
from grpo_repro.results import PUBLISHED, evaluations_table, over_seeds, pass_curve, plot_pass_curves, read_report, render
from grpo_repro.samples import Result, report_of


def made(seed, n=8, problems=20, names=("gsm8k", "math500")):
    rng = random.Random(seed)
    results = []
    for name in names:
        right = torch.tensor([rng.randrange(n + 1) for _ in range(problems)])
        results.append(Result(name, [f"{name}-{i}" for i in range(problems)], right, n, (right > n / 2).double(), 0.1, 0.05, 99.0))
    return results


@pytest.fixture
def folders(tmp_path):
    for name, seed in (("first", 0), ("second", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(report_of(made(seed), [1, 4, 8])))
    return [tmp_path / "first", tmp_path / "second"]


def test_the_report_s_numbers_are_those_of_its_counts():
    results = made(3)
    report = report_of(results, [1, 4, 8])
    for r in results:
        row = report[r.benchmark]
        for k in (1, 4, 8):
            v = row[f"pass@{k}"]
            assert v["value"] == pytest.approx(float(pass_at_k(r.right, r.n, k).mean())) and v["low"] <= v["value"] <= v["high"]
        assert row["avg@8"]["value"] == pytest.approx(row["pass@1"]["value"]) and row["maj@8"]["value"] == pytest.approx(float(r.votes.mean()))
        assert list(row["right"].values()) == r.right.tolist()
    assert report["average"]["pass@4"]["value"] == pytest.approx(sum(report[b]["pass@4"]["value"] for b in ("gsm8k", "math500")) / 2)


def test_every_form_of_the_table_holds_the_same_cells(folders):
    table = evaluations_table(folders, "pass@4")
    assert list(table.index) == ["first", "second"] and list(table.columns) == ["gsm8k, pass@4", "math500, pass@4", "average, pass@4"]
    back = pd.read_csv(io.StringIO(render(table, "csv")), index_col=0)
    assert back.map(str).equals(table)
    markdown = [[c.strip() for c in line.strip("|").split("|")] for line in render(table).splitlines()]
    assert markdown[0][1:] == list(table.columns) and markdown[2:] == [[i, *row] for i, row in zip(table.index, table.itertuples(index=False))]
    latex = render(table, "latex")
    assert latex.count("\\\\") == 3 and "gsm8k, pass@4" in latex and all(cell in latex for cell in table.iloc[0])
    assert "a\\|b" in render(pd.DataFrame({"a|b": [1]}))
    with pytest.raises(ValueError, match="known are markdown, csv, latex"):
        render(table, "html")


def test_what_is_not_there_is_said(folders, tmp_path, capsys):
    with pytest.raises(ValueError, match="no pass@64 for gsm8k; there is pass@1"):
        evaluations_table(folders, "pass@64")
    for text in ("", "[1]", '{"a": 5}', "{"):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(ValueError, match="is no report of an evaluation"):
            read_report(tmp_path)
    with pytest.raises(ValueError, match="no benchmark 'aime'"):
        pass_curve(read_report(folders[0]), "aime")
    assert main(["table", *map(str, folders), "--form", "csv"]) == 0 and "first" in capsys.readouterr().out
    assert main(["table", str(tmp_path / "none")]) == 2 and "finish first" in capsys.readouterr().err


def test_curves_rise_and_their_ends_are_the_report_s(folders):
    report = read_report(folders[0])
    curve = pass_curve(report, "gsm8k", resamples=500)
    assert list(curve["k"]) == list(range(1, 9)) and curve["value"].is_monotonic_increasing
    for k in (1, 4, 8):
        assert curve.set_index("k")["value"][k] == pytest.approx(report["gsm8k"][f"pass@{k}"]["value"])
    figure = plot_pass_curves({f.name: read_report(f) for f in folders}, "gsm8k")
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["first", "second"] and ax.get_xlabel() and ax.get_ylabel()


def test_differences_over_seeds_are_paired():
    table = pd.DataFrame({"method": ["a"] * 3 + ["b"] * 3, "seed": [0, 1, 2] * 2, "x": [1.0, 5.0, 9.0, 0.5, 4.5, 8.5]})
    assert over_seeds(table, "x", "a", "b") == (0.5, 0.0)
    mean, half = over_seeds(table, "x", "a")
    assert mean == 5.0 and half == pytest.approx(4.303 * 4 / 3**0.5)


def test_published_numbers_name_their_source_and_none_is_there_twice():
    assert len({c[:6] for c in PUBLISHED}) == len(PUBLISHED) and all(c.source and "arXiv" in c.paper for c in PUBLISHED)

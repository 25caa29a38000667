"The tools that keep notebooks honest must find the faults that they are for."

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from check_notebooks import check_code, check_notebook  # noqa: E402
from make_readme import readme  # noqa: E402


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("#| exprot\ndef f(): pass", "unknown directive 'exprot'"),
        ("x = 1\n#| export\ndef f(): pass", "not at the top"),
        ("#| export\n#| gpu\ndef f(): pass", "exported untested"),
        ("#| slow\n#| exporti\ndef f(): pass", "exported untested"),
        ("from torch import *", "star import"),
        ("\n".join(f"x{i} = {i}" for i in range(41)), "41 lines"),
    ],
)
def test_faulty_cells_are_found(source, fault):
    assert any(fault in f for f in check_code(source))


@pytest.mark.parametrize(
    "source", ["#| export\ndef f(): pass", "#| slow\nx = 1", "#| export\nclass A:\n" + "    x = 1\n" * 60, "#| eval: false\nx = 1", "x = '#| export'"]
)
def test_good_cells_pass(source):
    assert check_code(source) == []


def test_notebook_faults_are_found(tmp_path):
    path = tmp_path / "x.ipynb"
    cells = [
        {"cell_type": "markdown", "source": "# Title\n\nno line"},
        {"cell_type": "markdown", "source": "<<<<<<< HEAD\na\n>>>>>>> b\n"},
        {"cell_type": "code", "source": "1/0", "outputs": [{"output_type": "error"}]},
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": {}}))
    found = " ".join(check_notebook(path))
    assert "cell 1:" in found and "merge conflict" in found and "error output" in found
    path.write_text("{")
    assert "not JSON" in check_notebook(path)[0]


def test_stale_outputs_are_found(tmp_path):
    copy = tmp_path / "copy.ipynb"
    nb = json.loads((ROOT / "nbs" / "11_corpo.ipynb").read_text())
    copy.write_text(json.dumps(nb))
    assert check_notebook(copy) == []
    next(c for c in nb["cells"] if c["cell_type"] == "code")["source"] = "x = 2"
    copy.write_text(json.dumps(nb))
    assert any("older than the code" in f for f in check_notebook(copy))


def test_all_chapters_pass():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "check_notebooks.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_readme_is_the_index():
    assert (ROOT / "README.md").read_text() == readme()


@pytest.fixture
def checkout(tmp_path):
    "A copy of the checkout as a repository of its own, and a function that commits and runs CI's check in it."
    subprocess.run(["git", "-C", str(ROOT), "checkout-index", "-a", f"--prefix={tmp_path}/"], check=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)

    def check():
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "x"], check=True)
        env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        done = subprocess.run(["bash", "tools/check_sync.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return tmp_path, check


def _edit(path):
    path.write_text(path.read_text() + "\n# by hand\n")


def _soil(path):
    nb = json.loads(path.read_text())
    nb["cells"][3]["metadata"] = {"scrolled": True}
    path.write_text(json.dumps(nb, indent=1))


def _reword(path):
    nb = json.loads(path.read_text())
    nb["cells"][1]["source"] = ["other words"]
    path.write_text(json.dumps(nb, indent=1))


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (None, "", ""),
        (_edit, "grpo_repro/loss.py", "grpo_repro/loss.py"),
        (_edit, "README.md", "README.md differs"),
        (_soil, "nbs/11_corpo.ipynb", "nbs/11_corpo.ipynb"),
        (_reword, "nbs/index.ipynb", "README.md differs"),
    ],
)
def test_ci_fails_when_something_differs_from_the_notebooks(checkout, change, name, said):
    folder, check = checkout
    if change:
        change(folder / name)
    code, output = check()
    assert (code != 0) == bool(change) and said in output, output


def test_links_between_chapters_lead_somewhere():
    import re

    for path in sorted((ROOT / "nbs").glob("*.ipynb")):
        text = "".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "markdown")
        for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", text):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_commands_in_the_readme_exist():
    import re

    from grpo_repro.cli import COMMANDS

    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"grpo-repro ([a-z][a-z0-9-]*)", text):
        assert name in COMMANDS, name


def test_nothing_names_a_machine_or_a_workplace():
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        path = ROOT / name
        if path.suffix in {".ipynb", ".py", ".md", ".yaml", ".yml", ".ini", ".txt", ".json", ""} and path.name != "test_tools.py" and path.is_file():
            text = path.read_text(errors="ignore")
            for word in ("/work/", "/root/", "/opt/dev", "/home/", "/tmp/nbsrc"):
                assert word not in text, f"{name} names {word}"

"What a pip user gets: everything that is needed, and no path of anybody's machine."

import configparser
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "A wheel built from an sdist, as an index would serve it."
    out = tmp_path_factory.mktemp("dist")
    source = out / "src"
    subprocess.run(["git", "-C", str(ROOT), "checkout-index", "-a", f"--prefix={source}/"], check=True)
    build = "from setuptools import build_meta as b; import sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    for kind in ("build_sdist", "build_wheel"):
        done = subprocess.run([sys.executable, "-c", build, kind, str(out)], cwd=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if kind == "build_sdist":
            subprocess.run(["tar", "xf", str(next(out.glob("*.tar.gz"))), "-C", str(out)], check=True)
            source = next(p for p in out.glob("grpo_repro-*") if p.is_dir())
    return next(out.glob("*.whl"))


def test_the_wheel_holds_modules_recipes_and_the_policy(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files", "grpo_repro"], capture_output=True, text=True, check=True).stdout.split()
    missing = [n for n in tracked if n not in names]
    assert not missing
    assert "grpo_repro/models/running_sums/model.safetensors" in names and "grpo_repro/recipes/embedded.yaml" in names
    assert not [n for n in names if n.startswith(("nbs/", "tests/", "tools/"))]


def test_the_policy_is_small(wheel):
    info = zipfile.ZipFile(wheel).getinfo("grpo_repro/models/running_sums/model.safetensors")
    assert info.file_size < 2_000_000


def test_the_wheel_works_from_its_own_folder(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.'); import grpo_repro, torch; assert grpo_repro.__file__.startswith(sys.argv[1]), grpo_repro.__file__;"
        "from grpo_repro.config import Config; from grpo_repro.trainer import Trainer;"
        "print(Trainer(Config(questions_per_step=2, group_size=2, max_new_tokens=4)).step()['groups/sampled'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    assert re.search(r"^Version: 0\.1\.0$", metadata, re.M) and "License-Expression: Apache-2.0" in metadata.replace(
        "License: Apache-2.0", "License-Expression: Apache-2.0"
    )
    for extra in ("dev", "vllm", "trl", "verl"):
        assert f"Provides-Extra: {extra}" in metadata
    assert "grpo-repro = grpo_repro.cli:main" in archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    runtime = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert not [line for line in runtime if re.search(r"nbdev|fastcore|execnb|ghapi|pytest|jupyter", line)]


def test_no_module_needs_a_development_package():
    for path in (ROOT / "grpo_repro").rglob("*.py"):
        if path.name != "_modidx.py":
            assert not re.search(r"^\s*(from|import) (fastcore|nbdev|execnb|ghapi|pytest|hypothesis)", path.read_text(), re.M), path


def test_modules_are_short():
    for path in (ROOT / "grpo_repro").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500 or path.name == "_modidx.py", path


def test_constraints_pin_every_direct_dependency():
    settings = configparser.ConfigParser(delimiters=["="])
    settings.read(ROOT / "settings.ini")
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    for key in ("requirements", "dev_requirements", "trl_requirements"):
        for word in settings["DEFAULT"][key].split():
            assert re.split(r"[<>=!,\[]", word)[0].lower().replace("_", "-") in pinned, word

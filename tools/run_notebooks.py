"""Run chapters from top to bottom and store their outputs; cells that `tst_flags` skips keep what they show.

python tools/run_notebooks.py                 # every chapter
python tools/run_notebooks.py 01 10_group     # the chapters whose names start so
python tools/run_notebooks.py --stale         # only those whose code changed since their outputs were made
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / "nbs"


def code_digest(nb) -> str:
    "A hash of the chapter's code cells: outputs made from other code are stale."
    code = "\0".join("".join(c["source"]) for c in nb["cells"] if c["cell_type"] == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def run(path: Path, flags: set[str]) -> None:
    "Execute one chapter in place."
    from execnb.nbio import read_nb, write_nb
    from execnb.shell import CaptureShell
    from nbdev.process import extract_directives

    from transformers.utils import logging

    logging.disable_progress_bar()  # bars that load weights are noise in a printed chapter
    nb = read_nb(path)

    def skipped(cell):
        directives = extract_directives(cell, remove=False) if cell.cell_type == "code" else {}
        return bool(flags & directives.keys()) or directives.get("eval:", [""])[0].lower() == "false"

    for cell in nb.cells:
        if cell.cell_type == "code" and not skipped(cell):
            cell.outputs = []
    shell = CaptureShell(path, mpl_format="png")
    shell.run_all(nb, exc_stop=True, preproc=skipped)
    for cell in nb.cells:
        if cell.cell_type == "code":  # warnings and progress bars of libraries, with this machine's paths in them, are not for readers
            cell.outputs = [o for o in cell.get("outputs", []) if o.get("name") != "stderr"]
    nb.metadata["inputs_sha256"] = code_digest(nb)
    write_nb(nb, path)


def main() -> int:
    from execnb.nbio import read_nb
    from nbdev.clean import nbdev_clean
    from nbdev.config import get_config

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of chapter names")
    parser.add_argument("--stale", action="store_true", help="only chapters whose code cells changed")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    flags = set(get_config().tst_flags.split())
    paths = [p for p in sorted(NBS.glob("*.ipynb")) if not args.names or p.name.startswith(tuple(args.names))]
    if not paths:
        parser.error(f"no chapter starts with {args.names}; there are {[p.stem for p in sorted(NBS.glob('*.ipynb'))]}")
    for path in paths:
        nb = read_nb(path)
        if args.stale and nb.metadata.get("inputs_sha256") == code_digest(nb):
            continue
        print(f"running {path.name}", flush=True)
        pid = os.fork()  # a process of its own: one chapter's state must not reach the next
        if pid == 0:
            os.chdir(path.parent)
            code = 1
            try:
                run(path, flags)
                code = 0
            except BaseException as error:  # noqa: BLE001
                print(f"{path.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            return 1
        nbdev_clean(str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())

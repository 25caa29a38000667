"""README.md is nbs/index.ipynb in Markdown.

python tools/make_readme.py           # write README.md
python tools/make_readme.py --check   # exit 1 if README.md is not what index.ipynb says
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Made from nbs/index.ipynb by tools/make_readme.py: edit the notebook, not this file. -->\n\n"


def readme() -> str:
    "The Markdown of the index chapter, with links seen from the top of the repository."
    import nbformat
    from nbconvert import MarkdownExporter

    nb = nbformat.read(ROOT / "nbs" / "index.ipynb", as_version=4)
    nb.cells = [c for c in nb.cells if not c.source.lstrip().startswith("#| hide")]
    nb.metadata["language_info"] = {"name": "python"}
    body, _ = MarkdownExporter().from_notebook_node(nb)
    body = re.sub(r"\]\((?!https?:|#|\.\./)([^)]+)\)", r"](nbs/\1)", body)  # images/x.png -> nbs/images/x.png
    body = re.sub(r"\]\(\.\./", "](", body)  # ../CONTRIBUTING.md -> CONTRIBUTING.md
    return NOTE + re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"


def main() -> int:
    target = ROOT / "README.md"
    text = readme()
    if "--check" in sys.argv[1:]:
        if target.exists() and target.read_text(encoding="utf-8") == text:
            return 0
        print("README.md differs from nbs/index.ipynb: run `make readme`", file=sys.stderr)
        return 1
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# Fails if modules, README or notebooks differ from what the notebooks make, untracked files included.
set -euo pipefail
cd "$(dirname "$0")/.."
python tools/check_notebooks.py
nbdev_export
nbdev_clean
python tools/make_readme.py --check
changed=$(git status --porcelain -- nbs grpo_repro README.md)
if [ -n "$changed" ]; then
  printf 'these differ from what the notebooks make (run nbdev_export, nbdev_clean, make readme, and commit):\n%s\n' "$changed" >&2
  git --no-pager diff --stat -- nbs grpo_repro README.md >&2
  exit 1
fi

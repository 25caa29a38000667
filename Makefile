.PHONY: train test notebooks readme check bench gpu-check

train:
	grpo-repro train

test: check
	OMP_NUM_THREADS=1 nbdev_test
	pytest

notebooks:
	nbdev_export
	python tools/run_notebooks.py --stale

readme:
	python tools/make_readme.py

check:
	python tools/check_notebooks.py
	python tools/make_readme.py --check
	ruff check .

bench:
	python benchmarks/advantages.py
	python benchmarks/trl_step.py
	python benchmarks/engine.py

gpu-check:
	python benchmarks/gpu_check.py

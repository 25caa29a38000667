.PHONY: train test notebooks readme check bench gpu-check verl-check

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
	python benchmarks/trl_ep.py

gpu-check:
	python benchmarks/gpu_check.py

# verl wants older libraries than the rest: an environment of its own, under .verl
verl-check:
	test -d .verl || python3 -m venv .verl
	.verl/bin/pip install -q verl==0.9.1 'transformers<5.11' torch==2.13.0 cachetools TransferQueue uvicorn fastapi pytest
	PYTHONPATH=. .verl/bin/python -m pytest tests/test_verl.py

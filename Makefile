# Every command of this repository. Each one that needs the environment builds it first.
#
#   PYTHON=...              the Python to build it with (default: the newest that can be found)
#   ICEFLOE_VENV=...        where it is kept (default: .venv; `make oldest`, `make demo`, `make docs`
#                           and `make sparks` add -oldest, -demo, -docs, -spark-3.5-3.11 and so on)
#   ICEFLOE_INSTALLER=pip   install with pip even where uv is there
#   ARGS=...                further arguments for pytest or the benchmarks
#   TESTS=tests/unit        folders for `make test` to run instead of all

VENV := $(or $(ICEFLOE_VENV),.venv)
PY := $(VENV)/bin/python
OLDEST_VENV := $(VENV)-oldest
# The demo and the site need little. Each has its own environment unless the large one is there.
DEMO_VENV := $(if $(wildcard $(VENV)/.installed.json),$(VENV),$(VENV)-demo)
DOCS_VENV := $(if $(wildcard $(VENV)/.installed.json),$(VENV),$(VENV)-docs)
# The folders that meet the dependencies, and of Spark what reads and writes; clusters and killed
# processes do not depend on versions. Zarr's own suite for stores is left out, because it comes with
# Zarr and ours is written for that of later releases.
OLDEST_TESTS := tests/unit tests/api tests/store tests/virtual tests/interop tests/golden tests/cli \
	tests/contract/test_aws_profiles.py tests/house/test_other_systems.py \
	$(patsubst %,tests/spark/test_%.py,spark_versions spark_reading spark_tables attach write_table \
	    write_dataset stream_sink ingest compute maintenance) \
	--ignore=tests/store/test_zarr_suite.py
# They start clusters of separate processes and kill some of them.
CLUSTER_TESTS := $(patsubst %,tests/spark/test_%.py,compute_cluster connect faults_cluster faults_driver ingest_cluster side_by_side worker_modules)
# The Sparks that platforms run, each with a Python: the environments have these names too.
# What starts clusters and Spark Connect is left to `make cluster`.
SPARKS := 3.5-3.11 3.5-3.12 4.0-3.12
SPARK_TESTS := $(filter-out $(CLUSTER_TESTS),$(wildcard tests/spark/test_*.py))
FUZZ := $(PY) -m pytest -n 2 tests/fuzz tests/differential \
        --fuzz-cases=500000 --differential-programs=10000

# The set-up script chooses the Python of the environment; any Python can run the script. Each
# name is tried by running it, because a name on PATH may be a launcher with nothing behind it.
SETUP_ENV = for python in "$(PYTHON)" python3 python python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then \
	        exec "$$python" tools/setup_env.py

NO_PYTHON = fi; done; \
	echo "icefloe needs Python 3.11 or newer and found none on PATH: install it" \
	     "(from your system's packages, pyenv or python.org), or name it with PYTHON=..." >&2; exit 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test cluster browser services long oldest sparks released wheel extras check pages docs format fuzz soak bench clean
.PHONY: $(SPARKS:%=spark-%)

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## build the environment, unless it is there already
	@$(SETUP_ENV) "$(VENV)"; $(NO_PYTHON)

demo: ## files become a versioned dataset: in seconds on this machine, then on Spark
	@$(SETUP_ENV) --for first "$(DEMO_VENV)"; $(NO_PYTHON)
	@$(DEMO_VENV)/bin/python examples/demo.py
	@$(SETUP_ENV) --for demo "$(DEMO_VENV)"; $(NO_PYTHON)
	@$(DEMO_VENV)/bin/python examples/demo.py --spark

test: setup ## every test but the longest
	$(PY) -m pytest -n 2 --dist worksteal --durations 15 $(ARGS) $(CLUSTER_TESTS:%=--ignore=%) $(or $(TESTS),tests)

cluster: setup ## the tests of Spark clusters, Spark Connect and killed processes
	$(PY) -m pytest -n 2 --dist loadfile $(ARGS) $(CLUSTER_TESTS)

browser: setup ## the tests of the web page in Chromium; installs it if it can
	$(PY) tools/find_browser.py --install
	ICEFLOE_BROWSER_TESTS=required $(PY) -m pytest $(ARGS) tests/ui

services: setup ## the tests of Azure, with Azurite from npm
	npm install --prefix build/services --no-fund --no-audit --loglevel=error azurite
	ICEFLOE_AZURITE=$(CURDIR)/build/services/node_modules/.bin/azurite-blob \
	    $(PY) -m pytest $(ARGS) tests/contract/test_azure.py

long: setup ## the tests that take minutes and are left out of make test
	$(PY) -m pytest -n 2 --dist worksteal -m long $(ARGS) tests

oldest: ## part of the tests with the oldest Python and the lowest versions of dependencies
	@$(SETUP_ENV) --for oldest "$(OLDEST_VENV)"; $(NO_PYTHON)
	$(OLDEST_VENV)/bin/python -m pytest -n 2 --dist worksteal $(ARGS) $(OLDEST_TESTS)

sparks: $(SPARKS:%=spark-%) setup ## the tests of Spark on 3.5 (Python 3.11 and 3.12), 4.0 and the newest
	$(PY) -m pytest -n 2 --dist worksteal $(ARGS) $(SPARK_TESTS)

$(SPARKS:%=spark-%): spark-%:
	@$(SETUP_ENV) --for "spark-$(firstword $(subst -, ,$*))" --python "$(lastword $(subst -, ,$*))" \
	    "$(VENV)-$@"; $(NO_PYTHON)
	$(VENV)-$@/bin/python -m pytest -n 2 --dist worksteal $(ARGS) $(SPARK_TESTS)

released: setup ## repositories of spec version 1, read and extended by the last official release 1.x
	$(PY) -m pytest -m long $(ARGS) tests/legacy/migration/test_official_1x.py

wheel: setup ## build wheel and sdist, install each in an environment of its own, lint the images
	$(PY) -m pytest -m release $(ARGS) tests/release/test_wheel.py tests/release/test_images.py

extras: setup ## the wheel with each extra alone, in an environment of its own
	$(PY) -m pytest -m release $(ARGS) tests/release/test_extras.py

check: setup ## lint, format, types, generated code, layers, private names, words
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) tools/make_async_twins.py --check
	$(PY) tools/make_stub.py --check
	$(PY) tools/make_format_pages.py --check
	$(VENV)/bin/lint-imports --no-logo
	$(PY) tools/check_house.py

pages: setup ## the examples of all pages in order, in one folder, with the extras each page names
	@rm -rf build/pages
	$(PY) -m tests.docs.run_site build/pages

docs: ## the site of the documentation, in build/docs
	@$(SETUP_ENV) --for docs "$(DOCS_VENV)"; $(NO_PYTHON)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --quiet
	@echo "open build/docs/index.html, or with search: $(DOCS_VENV)/bin/python -m http.server -d build/docs -b 127.0.0.1"

format: setup ## put the code in the form that check wants
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

fuzz: setup ## damaged files and random programs, for long; ARGS says how long
	$(FUZZ) $(ARGS)

soak: setup ## simulated worlds for HOURS of all cores in sum; adds up in build/soak.json
	$(PY) tools/soak.py --hours $(or $(HOURS),2) $(ARGS)

bench: setup ## measurements
	$(PY) -m benchmarks $(ARGS)
	$(if $(ARGS),,$(PY) -m benchmarks.collecting)
	$(if $(ARGS),,$(PY) -m benchmarks.touched_arrays)
	$(if $(ARGS),,$(PY) -m benchmarks.commands)

clean: ## remove what these commands made, the environment included
	@rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	@find src tests tools $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf $(VENV)-icechunk-*
	@$(SETUP_ENV) --remove "$(OLDEST_VENV)"; $(NO_PYTHON)
	@$(SETUP_ENV) --remove "$(VENV)-demo"; $(NO_PYTHON)
	@$(foreach spark,$(SPARKS),($(SETUP_ENV) --remove "$(VENV)-spark-$(spark)"; $(NO_PYTHON));)
	@$(SETUP_ENV) --remove "$(VENV)-docs"; $(NO_PYTHON)
	@$(SETUP_ENV) --remove "$(VENV)"; $(NO_PYTHON)

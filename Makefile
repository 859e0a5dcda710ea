# `make help` lists the targets. Everything made at run time lies in .ebbtide/ and .venv/.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
WORKER_PYTHON ?= $(PYTHON)
PORT ?= 8080
LOGS ?= 100000
TOPICS ?= 20
SEED ?= 1
SCHEDULES ?= 200
FIRST ?= 0
QUARTER ?= git

export EBBTIDE_ROOT := $(CURDIR)
export EBBTIDE_HOME := $(CURDIR)/.ebbtide
export UV_COMPILE_BYTECODE := 1
unexport VIRTUAL_ENV

HOME_DIR := .ebbtide
DONE := $(HOME_DIR)/done
PY := .venv/bin/python
UV := .venv/bin/uv
WITH_ENV := set -a; . $(HOME_DIR)/conf/airflow.env; set +a;
OFFLINE := { echo "setup: packages could not be fetched; check the network, the proxy and pip's index, then run make again" >&2; exit 1; }

# A test file at a time. Python and its JVM wait for each other, so three pairs keep two cores busy.
PYTEST := $(PY) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
NO_SERVICES := 'not services and not compose and not browser and not pairs'
PICTURES := in-airflow topic-in-airflow form question run key
RENDERED := $(addprefix $(HOME_DIR)/conf/,spark-defaults.conf airflow.env log4j2.properties spark-env.sh)
BENCH_RESULTS := benchmarks/results/clean_log
BENCH := $(PY) -m benchmarks.clean_log --results $(BENCH_RESULTS)
BENCH_ADOPTED := adopted,adopted-v3,delete-on-adopted,merge-on-adopted,merge-on-adopted-v3,cow-merge-on-adopted
BENCH_CELLS := 8m-5,1m-5,1m-50,1m-5-zipf
# The class archive first: it takes longest, and mypy runs beside it.
READY := $(DONE)/requirements $(DONE)/jars $(RENDERED) archive $(HOME_DIR)/ebbtide.zip $(DONE)/airflow

.PHONY: help docs setup setup-test machine archive environment.tar.gz run test test-all test-short-and-long test-quarter durations test-services smoke test-compose test-pairs test-browser pictures vendor fuzz fuzz-spark chaos erasures check check-types check-style lock sample up bench bench-full bench-scale clean distclean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup: machine $(READY) ## Environment, jars, configuration and Airflow's database
	@mkdir -p $(HOME_DIR)/lake $(HOME_DIR)/logs

setup-test: setup $(DONE)/requirements-dev $(DONE)/services

run: setup ## Two nights on the sample log: ingest, nightly_retention twice, the report
	@$(WITH_ENV) exec $(PY) -m ebbtide.local.quickstart

environment.tar.gz: $(HOME_DIR)/environment.tar.gz ## What executors import, for a cluster's spark.archives (WORKER_PYTHON=)

test: ## Set up everything, run all checks and the tests that a change needs first
	@$(MAKE) -j2 check setup-test
	@$(PYTEST)

test-all: setup-test ## All tests there are, services, browser and containers too; goes on where it was stopped
	@$(PY) -m tests.everything

test-short-and-long: setup-test
	@$(PYTEST) -m $(NO_SERVICES) $(MORE)

test-quarter: setup-test ## A quarter of the long tests, another one with each commit (QUARTER= 0 to 3)
	@$(PYTEST) -m 'long and '$(NO_SERVICES) --quarter $(QUARTER) $(MORE)

durations: setup-test ## Store in tests/durations.json what each test costs, by a run of all without services
	@$(PYTEST) -m $(NO_SERVICES) --store-durations

fuzz: setup-test ## Random logs through Kafka's classes and our rules (LOGS=, SEED=, FIRST= to go on)
	@$(PY) conf/ivy/resolve_jars.py kafka $(HOME_DIR)/kafka-jars
	@$(PY) -m tests.log.fuzz --logs $(LOGS) --seed $(SEED) --first $(FIRST)

fuzz-spark: setup-test ## The same through the Spark stages, 100 logs a topic (TOPICS=, SEED=, FIRST=)
	@$(PY) conf/ivy/resolve_jars.py kafka $(HOME_DIR)/kafka-jars
	@$(PY) -m tests.nights.fuzz --logs-a-topic 100 --topics $(TOPICS) --seed $(SEED) --first $(FIRST)

test-services: setup-test ## Nights on PostgreSQL, REST, S3 and a Spark cluster (EBBTIDE_SERVICES=all for every cell); catalogs that are refused
	@for conf in rest refused s3proxy; do $(PY) conf/ivy/resolve_jars.py $$conf $(HOME_DIR)/$$conf-jars || exit 1; done
	@$(UV) pip install -q --require-hashes -r requirements-browser.txt || $(OFFLINE)
	@$(PY) -m pytest -m services tests/services tests/stores tests/writers $(MORE)

smoke: setup-test ## Two nights on PostgreSQL and a Spark cluster, and on REST and S3 (part of test-services)
	@$(PY) conf/ivy/resolve_jars.py rest $(HOME_DIR)/rest-jars
	@$(PY) -m pytest -m services tests/services/test_nights.py

test-compose: setup-test ## docker-compose.yaml: image, services, nights by its scheduler, a kill (needs Docker)
	@$(PY) conf/ivy/resolve_jars.py rest $(HOME_DIR)/rest-jars
	@$(PY) -m pytest -m compose tests/compose $(MORE)

test-pairs: setup-test ## Each pair of jobs on one topic at a time (PAIRS="own-clean_log" for one A, PAIRS_B=, PAIRS_STORE=yes)
	@$(PY) -m pytest -m pairs tests/pairs $(if $(PAIRS),-k "$(PAIRS)") $(MORE)

test-browser: setup-test ## The pages in Chromium: every role, light and dark, phone and wide, axe-core; a deletion by form, a key, 500 topics (needs npm, chromium, PostgreSQL)
	@$(UV) pip install -q --require-hashes -r requirements-browser.txt || $(OFFLINE)
	@$(PY) conf/npm/fetch.py $(HOME_DIR)/browser axe-core
	@$(PY) -m pytest -m browser tests/browser $(MORE)

pictures: test-browser ## The pictures of the pages in README and docs/pages.md, as test-browser has taken them
	@cp $(foreach page,$(PICTURES),$(HOME_DIR)/browser/pictures/$(page)-light.png $(HOME_DIR)/browser/pictures/$(page)-dark.png) docs/pictures

vendor: ## Fetch the pages' scripts from npm at their pinned versions
	@$(PYTHON) conf/npm/fetch.py src/ebbtide/orchestration/pages/static/vendor htmx.org uplot

chaos: setup-test ## Random nights with kills, other tools, full disks and strangers (SCHEDULES=, SEED=)
	@$(PY) -m tests.chaos --schedules $(SCHEDULES) --seed $(SEED)

erasures: setup-test ## Random schedules of deletes, erasures, holds, kills and nights (SCHEDULES=, SEED=)
	@$(PY) conf/ivy/resolve_jars.py kafka $(HOME_DIR)/kafka-jars
	@$(PY) -m tests.erasure --schedules $(SCHEDULES) --seed $(SEED)

check: check-types check-style ## Format, lint, types and import contracts

check-types: machine $(DONE)/requirements-dev
	@.venv/bin/mypy

check-style: machine $(DONE)/requirements-dev
	@.venv/bin/ruff format --check --quiet . || { echo "check: run .venv/bin/ruff format ." >&2; exit 1; }
	@.venv/bin/ruff check --quiet .
	@.venv/bin/lint-imports --no-logo

docs: setup-test ## Write the generated pages: docs/settings.md, runs.md, alerts.md, pairs.md and conformance.md
	@$(PY) -m docs.generate && $(PY) -m docs.draw
	@$(PY) -m tests.conformance

up: setup ## Airflow on http://127.0.0.1:8080 (PORT=...), until Ctrl-C
	@$(WITH_ENV) exec $(PY) -m ebbtide.local.serve --port $(PORT)

sample: setup-test ## Produce the sample log again, on a real broker
	@$(PY) -m sample.make_sample

bench: setup-test ## A cleaner round beside Kafka's and SQL's, ingest and retention, in an hour and a half
	@$(PY) benchmarks/read_segments.py
	@$(PY) -m benchmarks.expire_segments
	@$(PY) -m benchmarks.ingest_segments
	@$(PY) -m benchmarks.ingest_topic
	@$(PY) -m benchmarks.overview
	@$(PY) -m benchmarks.undo_run
	-@$(BENCH) --cells $(BENCH_CELLS) --runs-by-hand 1 --minutes 50
	@$(PY) -m benchmarks.clean_log.report --write

bench-full: setup-test ## The long measurements, taken up where they stopped
	-@$(BENCH) --resume --drop --runs 3 --cells 32m-1.25,8m-5-b500,8m-5-b10,8m-5-b1 --contenders ours,kafka
	-@$(BENCH) --resume --drop --runs 3 --cells 8m-50 --runs-by-hand 1
	-@$(PY) -m benchmarks.clean_log --results benchmarks/results/adopted --resume --runs 3 --runs-by-hand 1 \
		--cells 8m-5 --contenders $(BENCH_ADOPTED)
	@[ -e $(BENCH_RESULTS)/nights/nights.json ] || \
		$(PY) -m benchmarks.clean_log.thirty_nights --results $(BENCH_RESULTS)/nights
	@$(PY) -m benchmarks.clean_log.report --write

bench-scale: setup-test ## Many partitions, topics, years, segments and batches, and twice as many (CASES=, FACTOR=)
	@$(PY) -m benchmarks.scale $(if $(CASES),--cases $(CASES)) $(if $(FACTOR),--factor $(FACTOR))
	@$(PY) -m benchmarks.clean_log.report --write

lock: | $(UV) ## Compile the requirements files again
	@$(UV) pip compile -q --generate-hashes --python-version 3.11 pyproject.toml requirements.in -o requirements.txt
	@{ echo "# The versions of requirements.txt without hashes, for pip's -c. Written by \`make lock\`."; \
	  grep -oE '^[a-z0-9][a-z0-9._-]*==[^ ;]+' requirements.txt; } >constraints.txt
	@$(UV) pip compile -q --generate-hashes --python-version 3.11 pyproject.toml requirements-dev.in -o requirements-dev.txt
	@$(UV) pip compile -q --generate-hashes --python-version 3.11 requirements-services.in -o requirements-services.txt
	@$(UV) pip compile -q --generate-hashes --python-version 3.11 -c requirements-dev.txt requirements-browser.in -o requirements-browser.txt
	@$(UV) pip compile -q --generate-hashes --python-version 3.11 -c requirements.txt requirements-executors.in -o requirements-executors.txt

clean: ## Remove the lake, Airflow's database and logs; environment and jars stay
	rm -rf $(addprefix $(HOME_DIR)/,airflow lake logs spark-warehouse conf ebbtide.zip classes.jsa classes.jsa.stamp) $(DONE)/airflow

distclean: ## Remove everything that make made
	rm -rf $(HOME_DIR) .venv

machine:
	@conf/check_machine.sh $(PYTHON)

$(UV): conf/bootstrap.txt | machine
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install -q --require-hashes -r $< || $(OFFLINE)
	@touch $@

$(DONE)/requirements: requirements.txt pyproject.toml $(UV) | $(DONE)
	@echo "setup: installing the environment"
	@$(UV) pip install -q --require-hashes -r requirements.txt || $(OFFLINE)
	@$(UV) pip install -q --no-deps -e . || $(OFFLINE)
	@touch $@

$(DONE)/requirements-dev: requirements-dev.txt $(DONE)/requirements
	@echo "setup: installing what tests need"
	@$(UV) pip install -q --require-hashes -r requirements-dev.txt || $(OFFLINE)
	@touch $@

# In an environment of its own: it brings a web framework and a client for AWS along.
$(DONE)/services: requirements-services.txt $(DONE)/requirements
	@$(UV) venv -q --clear --python $(PY) $(HOME_DIR)/services
	@$(UV) pip install -q --python $(HOME_DIR)/services --require-hashes -r $< || $(OFFLINE)
	@touch $@

$(DONE)/jars: $(wildcard conf/ivy/*) $(DONE)/requirements
	@$(PY) conf/ivy/resolve_jars.py spark $(HOME_DIR)/jars
	@touch $@

# No template: its dollar signs are the shell's.
$(HOME_DIR)/conf/spark-env.sh: conf/spark-env.sh $(DONE)/jars
	@install -D -m 644 $< $@

# Packages without an interpreter: workers have one at the same path.
$(HOME_DIR)/environment.tar.gz: requirements-executors.txt $(UV)
	@echo "environment.tar.gz: installing and packing what executors import"
	@mkdir -p $(HOME_DIR)
	@$(UV) venv -q --clear --python $(WORKER_PYTHON) $(HOME_DIR)/executors
	@$(UV) pip install -q --python $(HOME_DIR)/executors --require-hashes -r $< || $(OFFLINE)
	@$(HOME_DIR)/executors/bin/venv-pack --quiet --force --prefix $(HOME_DIR)/executors --output $@

# Asked each time: no file of ours shows that the JVM changed.
archive: $(RENDERED)
	@$(PY) conf/class_archive.py

$(HOME_DIR)/conf/%: conf/% conf/render.py $(DONE)/jars $(wildcard $(HOME_DIR)/extra-jars $(HOME_DIR)/extra-jars/*)
	@$(PY) conf/render.py $< $(HOME_DIR)/conf

$(HOME_DIR)/ebbtide.zip: $(shell find src/ebbtide -name '*.py') conf/package.py $(DONE)/requirements
	@$(PY) conf/package.py $@

$(DONE)/airflow: $(DONE)/requirements $(HOME_DIR)/conf/airflow.env
	@echo "setup: making Airflow's database"
	@mkdir -p $(HOME_DIR)/logs
	@$(WITH_ENV) { airflow db migrate && $(PY) -m ebbtide.orchestration.pool; } >$(HOME_DIR)/logs/airflow-db.log 2>&1 || { tail -5 $(HOME_DIR)/logs/airflow-db.log >&2; exit 1; }
	@chmod 700 $(HOME_DIR)/airflow
	@touch $@

$(DONE):
	@mkdir -p $@

# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More than one a core, since tests wait more than they compute; each starts servers of its own on free ports.
JOBS ?= 3
# In the order of their folders: files of few and slow tests come first then, and not one by one at the end.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 4

.DEFAULT_GOAL := help
.PHONY: help demo demo-race test check lint types contracts unit test-one coverage order consumers conformance model judge chaos stale simulate fuzz crashes mutants reliability-report servers bench bench-report docs format clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

demo: $(VENV)/demo ## the main job on an embedded PostgreSQL, with a verdict from its tables (under 40 s)
	@$(BIN)/fencepost demo

demo-race: $(VENV)/demo ## the broken dispatcher beside the right one, as a timeline
	@$(BIN)/fencepost demo race

test: $(VENV)/dev servers lint types contracts ## lint, types, import contracts and all tests, on real servers
	$(BIN)/python -m pytest $(PARALLEL)

check: $(VENV)/dev lint types contracts unit ## what needs no server: under a minute

lint: $(VENV)/dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev ## mypy --strict
	$(BIN)/mypy

contracts: $(VENV)/dev ## who may import whom
	$(BIN)/lint-imports

unit: $(VENV)/dev ## the tests of the pure core
	$(BIN)/python -m pytest -q tests/core

test-one: $(VENV)/dev ## the tests whose name matches K, such as K=stale
	$(BIN)/python -m pytest -x -k '$(K)'

coverage: $(VENV)/dev ## branches of the core and of the operations that their own tests take: all of them, or it fails
	$(BIN)/python -m coverage run -m pytest -q tests/core tests/store
	$(BIN)/python -m coverage report

order: $(VENV)/dev ## random faults against the order of messages: SECONDS=60, SEED=… to repeat a run
	$(BIN)/python -m tests.order.campaign --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

consumers: $(VENV)/dev ## kills the consumers of examples/ again and again: SEED=… to repeat a run, ONLY="redis_consumer"
	$(BIN)/python -m tests.consumers.campaign $(if $(SEED),--seed $(SEED)) $(ONLY)

judge: $(VENV)/dev ## judge a recorded run: HISTORY=folder DATABASE=postgresql://… (see lab/checker/FORMAT.md)
	$(BIN)/python -m lab.checker $(HISTORY) --database $(DATABASE)

model: $(VENV)/dev ## every state of the protocol's model, and its sabotages: FULL=1 with three workers, VARIANT=name tells how one fails
	$(BIN)/python -m lab.model $(if $(FULL),--full) $(if $(VARIANT),--variant $(VARIANT))

# ONLY="cut sigstop" does only these kinds, WITHOUT="disk_full" not these; CHAOS_SLOW=3 for a machine with other work.
chaos: $(VENV)/dev servers ## real servers and processes under faults, then judged: MINUTES=10, SEED=… to repeat a plan
	$(BIN)/python -m lab.chaos --minutes $(or $(MINUTES),10) --covering $(if $(SEED),--seed $(SEED)) \
		$(ONLY:%=--only %) $(WITHOUT:%=--without %)

stale: $(VENV)/dev ## 100,000 forced finalizes with a stale token, of which none may change a row: COUNT=…
	$(BIN)/python -m lab.chaos stale --count $(or $(COUNT),100000) $(if $(SEED),--seed $(SEED))

# INTO=FILE keeps the figures of each 500, so that a run may be ended and another one go on.
conformance: $(VENV)/dev ## random histories on model, fake store and PostgreSQL: HISTORIES=20000 SEED=…
	$(BIN)/python -m lab.conformance --histories $(or $(HISTORIES),20000) $(if $(SEED),--seed $(SEED)) $(INTO:%=--into %)

# SCHEDULES=100000, or HOURS=2 of wall time; SEED=… to repeat a run; ONLY=… one schedule, as a failure prints it.
simulate: $(VENV)/dev ## the shipped dispatcher and worker on a virtual clock, with faults: SEED=… SCHEDULES=… OF=jobs CORES=2 INTO=file
	$(BIN)/python -m lab.simulator $(if $(OF),--of $(OF)) $(if $(SEED),--seed $(SEED)) $(if $(HOURS),--hours $(HOURS)) \
		$(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(ONLY),--only $(ONLY)) $(if $(WITHOUT),--without $(WITHOUT)) \
		$(if $(CORES),--cores $(CORES)) $(if $(INTO),--into $(INTO))

fuzz: $(VENV)/dev ## odd and broken input of every kind: SEED=… to repeat a run, CASES=100000, TARGET=enqueue
	$(BIN)/python -m lab.fuzz --cases $(or $(CASES),100000) $(if $(SEED),--seed $(SEED)) $(if $(TARGET),--target $(TARGET)) \
		$(if $(INTO),--into $(INTO))

servers: ## install the servers that the tests need and no wheel brings
	@scripts/install_servers.sh

# ONLY=store or ONLY=runtime for a part of it, EVERY=10 for a tenth; INTO=FILE to go on with a run that was broken off.
crashes: $(VENV)/dev ## end the session or the process at every statement of every operation, recover, judge
	$(BIN)/python -m lab.crashes $(if $(ONLY),--only $(ONLY)) $(if $(EVERY),--every $(EVERY)) $(if $(INTO),--into $(INTO))

# ONLY=claim.sql for those of one file, or the name of one.
mutants: $(VENV)/dev ## sabotage the protocol in 300 small ways, and see which tests notice (RECORD=file to go on later)
	$(BIN)/python -m lab.mutants $(ONLY:%=--only %) $(if $(RECORD),--record $(RECORD))

# PART=chaos ARGS="--minutes 60 --seed 7" runs that; WHOLE=1 as much of everything as the bounds say.
reliability-report: $(VENV)/dev servers ## run the lab's parts, keep what they found, write the figures of docs/reliability.md
	$(BIN)/python -m lab.report $(PART:%=--part %) $(if $(WHOLE),--whole) $(ARGS)

bench: $(VENV)/dev ## messages per second beside a bare SQL loop, and the cost of a message
	$(BIN)/fencepost bench drain

# BROKERS="nats redis" starts these only, ONLY=destinations measures that section only, SCALE=0.1 a tenth of it.
bench-report: $(VENV)/dev ## every figure that must hold, on real brokers, into OUT=docs/bench (a quiet half hour)
	$(BIN)/python -m scripts.bench_report --out $(or $(OUT),docs/bench) $(BROKERS:%=--broker %) $(ONLY:%=--only %) \
		$(if $(SCALE),--scale $(SCALE))

docs: ## where the documentation starts
	@echo "Read README.md, then ARCHITECTURE.md, docs/ and docs/adr/ (Markdown, nothing to build)."

format: $(VENV)/dev ## let ruff format and sort
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and what tools left behind
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# No build isolation: the build backend is pinned like everything else.
$(VENV)/dev: $(VENV)/bin/python requirements/dev.txt pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/dev $(VENV)/demo

$(VENV)/demo: $(VENV)/bin/python requirements/demo.txt pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements/demo.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/demo

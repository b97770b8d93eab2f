# make demo         train a small policy under ATR-GRPO      make test-slow  kills, resumes, a browser
# make test         install and run the tests                make browser    Chromium for them, on Debian
# make check        lint, types, import contract             make setup      install, run nothing
# make wheel-check  build the wheel and use it elsewhere
# make peers TRL_TESTS=... SB3_TESTS=...   other projects' own tests on our classes
# make verl-setup | verl-test | verl-e2e   the same method in verl, in an environment of its own
#
# DEPENDENCIES=oldest | newest   instead of the pinned ones: the oldest releases that pyproject.toml
#                                allows, or whatever is newest today (in a fresh .venv)
PYTHON ?= python3
DEPENDENCIES ?= pinned
BIN := .venv/bin
RUN := .venv/.installed-run-$(DEPENDENCIES)
DEV := .venv/.installed-dev-$(DEPENDENCIES)
VERL := .venv-verl
export PIP_DISABLE_PIP_VERSION_CHECK = 1

RUN_WITH.pinned := -r requirements/run.txt
DEV_WITH.pinned := -r requirements/dev.txt
RUN_WITH.oldest := -c requirements/oldest.txt -e .[train,report]
DEV_WITH.oldest := -c requirements/oldest.txt -e .[train,report,control,slurm,dev]
RUN_WITH.newest := --upgrade -e .[train,report]
DEV_WITH.newest := --upgrade -e .[train,report,control,slurm,dev]
PEERS := .peers

.PHONY: setup demo test test-slow browser check wheel-check peers verl-setup verl-test verl-e2e

setup: $(DEV)

demo: $(RUN)
	$(BIN)/trustclip demo

test: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

test-slow: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist load -m slow

browser:
	command -v chromium || (apt-get update -q && apt-get install -qy --no-install-recommends chromium)

check: $(DEV)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright
	$(BIN)/lint-imports

# The projects' own tests, from copies outside this repository, on our classes and on theirs:
# make peers TRL_TESTS=.../trl/tests/test_grpo_trainer.py SB3_TESTS=.../stable-baselines3/tests
PEERS_RUN = HF_HOME=$(abspath $(PEERS)) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
  PYTHONPATH=$(abspath tests) $(abspath $(BIN))/python -m pytest -q -p peers.plugin \
  -p no:cacheprovider -c /dev/null --rootdir=/ --tb=line -rf
peers: $(DEV)
	PYTHONPATH=tests $(BIN)/python -m peers.models $(PEERS)
	-$(if $(TRL_TESTS),cd $(dir $(TRL_TESTS)) && PEERS=plain $(PEERS_RUN) $(notdir $(TRL_TESTS)))
	-$(if $(TRL_TESTS),cd $(dir $(TRL_TESTS)) && PEERS=ours $(PEERS_RUN) $(notdir $(TRL_TESTS)))
	-$(if $(SB3_TESTS),cd $(dir $(SB3_TESTS)) && PEERS=plain $(PEERS_RUN) -k ppo $(notdir $(SB3_TESTS)))
	-$(if $(SB3_TESTS),cd $(dir $(SB3_TESTS)) && PEERS=ours $(PEERS_RUN) -k ppo $(notdir $(SB3_TESTS)))

# `build` goes first: setuptools would pack the files of an earlier tree that it still holds.
# In an empty folder, with the core dependencies alone: what `pip install trustclip` gives.
wheel-check: $(BIN)/python
	rm -rf build dist && mkdir -p build/wheel
	$(BIN)/python -m pip wheel -q --no-deps -w dist .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install -q -c requirements/run.txt torch==2.13.0 dist/*.whl
	cd build/wheel && venv/bin/python ../../tests/check_wheel.py

verl-setup: $(VERL)/.installed

verl-test: $(VERL)/.installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -m "not slow" tests/verl_engine tests/test_other_engines.py src/trustclip/engines/verl/loss.py
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -k ray tests/test_suite_elsewhere.py

verl-e2e: $(VERL)/.installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -s tests/verl_engine/test_main_ppo.py

$(VERL)/.installed: requirements/verl.txt pyproject.toml
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install -q --no-deps -r requirements/verl.txt
	$(VERL)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trustclip needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv

$(RUN): $(BIN)/python requirements/run.txt requirements/oldest.txt pyproject.toml
	$(BIN)/python -m pip install -q $(RUN_WITH.$(DEPENDENCIES))
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@

$(DEV): $(RUN) requirements/dev.txt
	$(BIN)/python -m pip install -q $(DEV_WITH.$(DEPENDENCIES))
	touch $@

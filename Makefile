# make demo   a small policy learns under ATR-GRPO     make test-slow  kills, resumes, a browser
# make test   install and run the tests                make browser    Chromium for them, on Debian
# make check  lint, types, import contract             make setup      install, run nothing
# make verl-setup | verl-test | verl-e2e   the same method in verl, in an environment of its own
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.installed-run
DEV := .venv/.installed-dev
VERL := .venv-verl
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo test test-slow browser check verl-setup verl-test verl-e2e

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

verl-setup: $(VERL)/.installed

verl-test: $(VERL)/.installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -m "not slow" tests/verl_engine tests/test_other_engines.py src/trustclip/engines/verl.py
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

$(RUN): $(BIN)/python requirements/run.txt pyproject.toml
	$(BIN)/python -m pip install -q -r requirements/run.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@

$(DEV): $(RUN) requirements/dev.txt
	$(BIN)/python -m pip install -q -r requirements/dev.txt
	touch $@

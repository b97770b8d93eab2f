# make demo   a small policy learns under ATR-GRPO        make test   install and run the tests
# make check  lint, types, import contract                make setup  install everything, run nothing
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.installed-run
DEV := .venv/.installed-dev
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo test check

setup: $(DEV)

demo: $(RUN)
	$(BIN)/trustclip demo

test: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(DEV)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright
	$(BIN)/lint-imports

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

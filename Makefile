# make demo   a small policy learns under ATR-GRPO     make test-slow  kills, resumes, a browser
# make test   install and run the tests                make browser    Chromium for them, on Debian
# make check  lint, types, import contract             make setup      install, run nothing
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.installed-run
DEV := .venv/.installed-dev
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo test test-slow browser check

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

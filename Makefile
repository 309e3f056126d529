# make demo   see it work            make test   everything that must hold
# make lint   style and types        make bench  how fast it is on this machine
# make test-monailabel   the real MONAI Label server with this bundle; its own environment in .venv-monailabel
# Each target first makes its environment in .venv; only compiled loops go elsewhere (~/.cache/structured-sir-numba).

PYTHON ?= python3
WORKERS ?= 2
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LABEL  := .venv-monailabel

.PHONY: setup demo test test-monailabel lint bench clean
.DELETE_ON_ERROR:

setup: $(READY)

# Rebuilt only when the pins change, so that a second call starts at once.
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

demo: $(READY)
	$(BIN)/python -m monai.bundle run inference --config_file configs/inference.json --output_dir output/demo

# Two workers, a file each at a time, each with its part of the cores (see tests/conftest.py).
test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

$(LABEL)/.ready: bundle/monailabel/requirements.txt
	$(PYTHON) -m venv $(LABEL)
	$(LABEL)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	$(LABEL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps monailabel==0.8.5
	@touch $@

test-monailabel: $(LABEL)/.ready
	$(LABEL)/bin/python -m pytest -m monailabel tests/bundle/monailabel

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m experiments.benchmark all

clean:
	rm -rf $(VENV) $(LABEL) output .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

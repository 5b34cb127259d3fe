# make demo | test | check | bench set themselves up on a fresh machine.
# PY=python3 make test uses the Python at hand and installs nothing.
ifeq ($(origin PY), undefined)
PY := .venv/bin/python
READY := .venv/.ready
endif
export PYTHONPATH := $(CURDIR)/src

.PHONY: demo test test-slow soak fuzz check format bench clean

demo: $(READY)
	$(PY) -m mlnt train digits --noise symmetric:0.7

# Where pytest-xdist is installed, two processes share the tests; the faster takes from the slower.
WORKERS ?= 2
SHARED = $(shell $(PY) -c 'import xdist' 2>&- && echo '-n $(WORKERS) --dist worksteal')
test: $(READY)
	$(PY) -m pytest $(SHARED)

test-slow: $(READY)
	$(PY) -m pytest -m slow

soak: $(READY)
	$(PY) -m pytest -m soak -s

# Ten minutes for each parser, or `make fuzz PARSERS="csv npz" MINUTES=1`; needs atheris.
PARSERS ?= all
MINUTES ?= 10
fuzz: $(READY)
	$(PY) -m tests.fuzz $(PARSERS) --minutes $(MINUTES)

check: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

format: $(READY)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: $(READY)
	$(PY) -m mlnt bench

.venv/.ready: pyproject.toml constraints.txt
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

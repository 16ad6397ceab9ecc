# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo   set up .venv, get MNIST, compare the methods, leave a page in demo/
#   make test   set up .venv, run all tests

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DOCS := .venv/.docs

.PHONY: demo test test-fast lint docs bench bench-quick bench-peers bench-plan bench-live reproduce clean

demo: $(READY)
	$(BIN)/salf demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadgroup

# For daily work: without the tests that start processes or take seconds.
test-fast: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in site/; a warning is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# One table, and benchmarks/results.json: under 40 minutes on two idle cores, bench-quick under 5.
bench: $(READY)
	$(BIN)/python benchmarks/all.py

bench-quick: $(READY)
	$(BIN)/python benchmarks/all.py --quick

# The same jobs on pfl, Flower, FLGo, a plain loop and salf, about 15 minutes on two idle cores;
# the first time it makes an environment for each of them (5 GB). ARGS="--jobs mlp --repeats 1".
bench-peers: $(READY)
	$(BIN)/python benchmarks/peers/run.py $(ARGS)

# The table and the figure of docs/plan.md, about 20 minutes each on two cores; both continue.
bench-plan: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/regret.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/map.py

# With nothing else going on: deadlines of 50 ms, and percents of them, are measured.
bench-live: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/deadlines.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/live.py

# The paper's items at the quick size, about 40 minutes on two cores; python -m reproduction --help.
reproduce: $(READY)
	$(BIN)/python -m reproduction

# The constraints pin what is installed; torch above all, whose other builds bring gigabytes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

# The site needs packages that nothing else does.
$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv demo site

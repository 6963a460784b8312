# `make` alone lists what there is to do. Everything runs in .venv, which `make setup` keeps up to date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Built with the package, so that it has to be installed again when they change.
KERNELS := hatch_build.py $(wildcard src/bedl/_kernels/*.[ch])
# What the demo needs is less; where everything is installed already, that will do.
DEMO_STAMP := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-demo)

# One thread per test process, so that the processes do not compete for cores.
WORKERS ?= 2
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTEST  := $(THREADS) $(BIN)/python -m pytest -n $(WORKERS)

# The numerical part of the tests, and settings that make the libraries compute as they do on other processors: PyTorch
# without vectors and with shorter ones, oneDNN for an old processor, MKL for one of another maker; without the kernels
# in C; on two threads.
NUMERICAL  ?= tests/rules tests/nn tests/native tests/heads tests/predictive tests/objectives tests/methods \
              tests/test_moments.py tests/test_special.py
PROCESSORS ?= ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE \
              BEDL_NATIVE=0 OMP_NUM_THREADS=2

.DEFAULT_GOAL := help
.PHONY: architectures help setup demo test test-all test-campaign test-lowest test-processors test-reference lint format bench docs site dist clean

help: ## show this list
	@echo "usage: make TARGET   (variables: PYTHON=$(PYTHON), WORKERS=$(WORKERS), ARGS=… for pytest and the benchmarks)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# What pip would do after installing, on all processors. Some packages carry templates that are no Python: no matter.
COMPILE := @$(BIN)/python -m compileall -q -j 0 $(VENV)/lib src > /dev/null 2>&1 || true

setup: $(STAMP) ## make .venv with bedl (editable) and its tools, at the versions of constraints.txt

# The environment variables pin the build backend too; which one is read depends on pip's age.
$(STAMP): pyproject.toml constraints.txt $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[test,dev]"
	$(COMPILE)
	@touch $@

$(VENV)/.installed-demo: pyproject.toml constraints.txt $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[cli,sklearn,train]"
	$(COMPILE)
	@touch $@

demo: $(DEMO_STAMP) ## fit on built-in data, print the scores, write pages to look at under demo/
	@mkdir -p demo
	@echo "== Regression: how a disease goes on within a year, from ten measurements"
	$(BIN)/bedl fit diabetes:train --out demo/diabetes-model --overwrite
	$(BIN)/bedl report demo/diabetes-model diabetes:test --out demo/diabetes.html --overwrite
	@echo "== Classification: handwritten digits, and mirrored ones that it should be unsure of"
	$(BIN)/bedl fit digits:train --epochs 40 --out demo/digits-model --overwrite
	$(BIN)/bedl evaluate demo/digits-model digits:test --ood digits:mirrored
	$(BIN)/bedl report demo/digits-model digits:test --ood digits:mirrored --out demo/digits.html --overwrite
	@echo "Open in a browser: $(CURDIR)/demo/diabetes.html and $(CURDIR)/demo/digits.html"

lint: $(STAMP) ## style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: lint ## lint, then all tests and doctests but the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

test-all: lint ## lint, then all tests and doctests
	$(PYTEST) $(ARGS)

# torch.compile would take code with vectors of another length from its cache, and sum a part of the entries only. What
# `env` is given last holds, so that a setting may also name the threads.
NO_CACHE := TORCHINDUCTOR_FX_GRAPH_CACHE=0 TORCHINDUCTOR_AUTOGRAD_CACHE=0

test-processors: $(STAMP) ## the numerical tests as on other processors, one setting of PROCESSORS after the other
	@for setting in $(PROCESSORS); do \
		echo "== $$setting"; \
		env $(THREADS) $(NO_CACHE) $$setting $(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow" \
			$(NUMERICAL) $(ARGS) || exit 1; \
	done

# All of it takes many hours of one core; ARGS="kills pairs --tries 50" makes a part. What was tried is kept, and not
# tried again.
test-campaign: $(STAMP) ## attacks of all sorts, in numbers (tools/campaign); prints the figures of docs/reliability.md
	$(THREADS) $(BIN)/python -m tools.campaign $(ARGS)

# Beside .venv, which they do not change, and without what they ask for in turn.
REFERENCE := build/reference
$(REFERENCE)/.installed: pyproject.toml constraints.txt | $(STAMP)
	rm -rf $(REFERENCE)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -c constraints.txt \
		--target $(REFERENCE) $$($(BIN)/python tools/extra.py reference)
	@touch $@

test-reference: $(REFERENCE)/.installed ## what is checked against other libraries, with these; a skip is a failure
	$(THREADS) PYTHONPATH=$(REFERENCE) $(BIN)/python -m pytest -q -p tests.no_skips -m reference \
		tests/methods tests/metrics tests/nn/test_geometric.py tests/test_docs.py $(ARGS)

# The lowest declared version of each dependency, in an environment of its own; a bound that fails is to be raised.
# scikit-learn 1.6 is run with what there was beside it: newer pytest, SciPy and polars warn of how it calls them.
LOWEST := build/lowest
test-lowest: pyproject.toml ## the tests with the lowest versions that pyproject.toml declares
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tools/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt \
		-e ".[all,dask,gp]" edl-pytorch hypothesis mapie mpmath "polars<1.40" "pytest<9" pytest-xdist "scipy<1.16"
	$(THREADS) $(LOWEST)/bin/python -m pytest -n $(WORKERS) -q -m "not slow and not arch" $(ARGS)

format: $(STAMP) ## rewrite the code as ruff wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## speed against peers (benchmarks/); never part of the tests
	@test -d benchmarks || { echo "make bench: there is no benchmarks/ folder yet" >&2; exit 1; }
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(STAMP) ## generate docs/operations.md from the rules, docs/tables.md from results/
	$(BIN)/python -m tools.operations > docs/operations.md || { rm -f docs/operations.md; exit 1; }
	$(BIN)/python tools/bench_tables.py > docs/tables.md || { rm -f docs/tables.md; exit 1; }

# What is needed beyond `make setup`, at the versions of constraints.txt.
EXTRA = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

site: $(STAMP) ## the documentation site, in build/site; a broken link or reference is an error
	@$(BIN)/python -c "import mkdocs, material, mkdocstrings, mkdocs_jupyter, latex2mathml" 2> /dev/null || \
		$(EXTRA) $$($(BIN)/python tools/extra.py site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

dist: $(STAMP) ## sdist and wheels in dist/, installed in a fresh environment and run there
	@$(BIN)/python -c "import build, hatchling, auditwheel" 2> /dev/null || \
		$(EXTRA) $$($(BIN)/python tools/extra.py dist)
	$(BIN)/python tools/dist.py

architectures: $(STAMP) ## which published architectures work, approximate or are refused: docs/architectures.md (minutes)
	$(BIN)/python -m tools.architectures $(ARGS)

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) .cache build demo dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

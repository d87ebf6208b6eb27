# Both commands set everything up in .venv from nothing; a second run reuses it.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test docs audit clean

demo: $(READY)
	$(VENV)/bin/laconic compare lm --methods dense,topk:memory=update,dgc:density=0.01,sdagc,celgc,spartan --workers 4 --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(READY)
	scripts/check

# The documentation as a site. Pages can be opened as files; their search wants a server: python3 -m http.server --directory build/site
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# Asks a database of known flaws, over the network, whether one of the pinned versions is in it.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) $(VENV)-audit build .mypy_cache .pytest_cache .ruff_cache .hypothesis

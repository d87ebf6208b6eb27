# Both commands set everything up in .venv from nothing; a second run reuses it.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test clean

demo: $(READY)
	$(VENV)/bin/laconic compare lm --methods dense,topk:memory=update,dgc:density=0.01,sdagc,celgc,spartan --workers 4 --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(READY)
	scripts/check

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

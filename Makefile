# Everything runs in .venv, which is made from PYTHON and follows the sources. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On macOS the plain mlx package brings its Metal backend; on Linux a backend is an extra.
ifeq ($(shell uname -s),Linux)
EXTRAS := cpu,test,demo
else
EXTRAS := test,demo
endif

export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/build/zig
export ZIG_LOCAL_CACHE_DIR := $(CURDIR)/build/zig

SOURCES := CMakeLists.txt pyproject.toml $(shell find cmake csrc metal mlx_tensorops -type f \
	! -path '*/__pycache__/*' ! -path 'cmake/macos-cross/*' ! -path 'cmake/arm64-linux/*' \
	! -name '_ext*.so' ! -name '_build_info.py' 2>/dev/null)
FORMATTED := $(shell find csrc metal tests cmake/macos-cross -type f \
	\( -name '*.h' -o -name '*.cpp' -o -name '*.metal' -o -name '*.cu' \) 2>/dev/null)

.PHONY: help install demo test test-emulator test-full lint types cross-macos kernel-tests kernel-tests-native \
	kernel-tests-arm64 docs docs-check bench clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1: /p' Makefile

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, PYTHON=python3.x chooses one")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# In an isolated build everything is compiled anew, as the build tools lie elsewhere each time. With the
# developers' tools in .venv it is not isolated, and only what changed is compiled.
$(VENV)/.installed: $(VENV)/.made $(SOURCES)
	$(BIN)/python -c 'import nanobind, scikit_build_core' 2>/dev/null && unisolated=--no-build-isolation; \
		$(BIN)/python -m pip install --quiet $$unisolated '.[$(EXTRAS)]'
	touch $@

# The package is installed by now, so this adds nothing but the extra's own requirements.
$(VENV)/.developing: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet 'mlx-tensorops[dev]'
	touch $@

install: $(VENV)/.installed ## build the package and install it into .venv

demo: $(VENV)/.installed ## a language model through our ops and through MLX's own
	$(BIN)/python demo/smollm2.py

test: $(VENV)/.installed ## the test suite
	$(BIN)/pytest $(PYTEST_ARGS)

test-emulator: $(VENV)/.installed ## of the test suite, what concerns the Metal emulator
	$(BIN)/pytest tests/emulator $(PYTEST_ARGS)

test-full: $(VENV)/.installed ## the test suite with every combination and the long tests
	$(BIN)/pytest --full $(PYTEST_ARGS)

lint: $(VENV)/.developing ## formatting, style, and the CI configuration
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)
	$(BIN)/shellcheck .ci/run
	$(BIN)/yamllint --strict .github .pre-commit-config.yaml .yamllint.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/cibuildwheel --print-build-identifiers --platform linux --archs x86_64,aarch64
	$(BIN)/cibuildwheel --print-build-identifiers --platform macos --archs arm64

types: $(VENV)/.developing ## mypy, strict
	$(BIN)/mypy
	cd cmake/macos-cross && $(CURDIR)/$(BIN)/mypy --config-file= --strict *.py

cross-macos: $(VENV)/.developing ## build and strictly link for macOS arm64, and prove the link strict
	$(BIN)/python cmake/macos-cross/build.py --self-test

kernel-tests: kernel-tests-native kernel-tests-arm64 ## the C++ kernel tests, here and as arm64 in qemu

kernel-tests-native: $(VENV)/.developing ## the C++ kernel tests on this machine
	$(call kernel_tests,native,)

kernel-tests-arm64: $(VENV)/.developing ## the C++ kernel tests as arm64 Linux programs in qemu-user
	@command -v qemu-aarch64-static >/dev/null && test -d /usr/aarch64-linux-gnu || { \
		echo 'apt-get install qemu-user-static libc6-arm64-cross' >&2; exit 1; }
	$(call kernel_tests,arm64,-DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/arm64-linux/toolchain.cmake \
		-DARM64_PYTHON=$(CURDIR)/$(BIN)/python)

define kernel_tests
	$(BIN)/cmake -G Ninja -S . -B build/kernel-tests-$(1) -DMTO_KERNEL_TESTS=ON \
		-DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja $(2)
	$(BIN)/cmake --build build/kernel-tests-$(1)
	$(BIN)/ctest --test-dir build/kernel-tests-$(1)/tests/cpp --output-on-failure --no-tests=error
endef

docs: $(VENV)/.developing ## write SUPPORT.md and mlx_tensorops/_ext.pyi anew
	$(BIN)/python tools/generate_docs.py

docs-check: $(VENV)/.developing ## fail if SUPPORT.md or mlx_tensorops/_ext.pyi is stale
	$(BIN)/python tools/generate_docs.py --check

bench: $(VENV)/.installed ## the benchmarks, as machine-readable rows
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

clean: ## remove everything that was made here
	rm -rf build dist $(VENV)

# The commands of a checkout. `make help` lists them; CMakePresets.json holds the settings they use.
JOBS ?= $(shell nproc)
# Unit tests run this many at a time, tests that start ranks of their own half as many: most of them
# wait for something, most of the time.
TEST_JOBS ?= $(shell expr 2 \* $(JOBS))
# How long `make fuzz` looks for new ways through the parsers.
FUZZ_SECONDS ?= 60
# ON in CI: warnings are errors.
WERROR ?= OFF
CONFIGURE = cmake -DTUTTI_WERROR=$(WERROR)

.DEFAULT_GOAL := help
.PHONY: help quickstart setup build test test-all tests package bench python python-test docs lint format asan tsan fuzz clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart: setup  ## on a fresh machine: set up, build, train Quick, Draw! on two replicas
	@tools/quickstart $(JOBS)

setup:  ## install what is missing: apt packages and LibTorch (tools/setup)
	@tools/setup

build: setup  ## build the library, the program and the examples
	$(CONFIGURE) --preset release
	cmake --build --preset release --parallel $(JOBS)

test: tests  ## on a fresh machine: set up, build, build the tests, run all but the slow ones
	ctest --preset release --parallel $(TEST_JOBS) --label-exclude '^slow$$'
	@tools/skipped_tests
	@ctest --preset release -N -L '^slow$$' | \
	  sed -n 's/^Total Tests: /left out as slow (make test-all runs them too): /p'

test-all: tests  ## the same with the slow ones, as CI
	ctest --preset release --parallel $(TEST_JOBS)
	@tools/skipped_tests --all

tests:
	@tools/setup --test
	$(CONFIGURE) --preset release
	cmake --build --preset tests --parallel $(JOBS)
	rm -rf build/tests/results

package: setup  ## build/package: a tarball of what is installed, on Debian 13 a .deb too
	@tools/setup --package
	$(CONFIGURE) --preset release
	cmake --build --preset release --parallel $(JOBS) --target tutti_installed
	cpack --config build/CPackConfig.cmake
	@find build/package -maxdepth 1 \( -name '*.tar.gz' -o -name '*.deb' \) -exec ls -sh {} +

bench:  ## compare with PyTorch on this machine (installs the peers first)
	@tools/setup --bench
	$(CONFIGURE) --preset release
	cmake --build --preset bench --parallel $(JOBS)
	cmake --build --preset release --parallel $(JOBS) --target test_compare
	TUTTI_TEST_PEERS=1 build/bin/test_compare --gtest_filter='*BesidePeers.*'
	build/bin/tutti_bench compare --data examples/data/quickdraw

python: setup  ## install backend "tutti" for PyTorch into .venv (tools/setup --bench puts torch there)
	@tools/setup --bench
	.venv/bin/python -m pip install --no-build-isolation ./python

python-test: python  ## the backend's tests, then PyTorch's own on gloo and on tutti (about 10 minutes)
	.venv/bin/python -m pip install --quiet --requirement python/tests/requirements.txt
	cmake --preset release -B build/python-test -DTUTTI_BUILD_PYTHON=ON
	cmake --build build/python-test --target test_c10d
	ctest --test-dir build/python-test --output-on-failure -R '^test_c10d'
	cd python/tests && $(CURDIR)/.venv/bin/python -m unittest test_backend test_training test_hosts test_export
	.venv/bin/python python/tests/run_torch_tests.py

docs:  ## the API reference of the public headers, by Doxygen: build/docs/html
	@tools/setup --docs
	@mkdir -p build/docs
	doxygen docs/Doxyfile
	@echo "build/docs/html/index.html"

lint: build  ## check format, floors, budgets, documentation programs, and clang-tidy's findings
	cmake --build --preset release --parallel $(JOBS) --target doc_programs
	@tools/lint/run

format:  ## rewrite C++ sources in the style of .clang-format
	@tools/lint/run --fix-format

asan: setup  ## floors 0 to 2 and the step of two thread replicas under address + undefined
	$(CONFIGURE) --preset asan
	cmake --build --preset asan --parallel $(JOBS)
	ctest --preset asan

tsan: setup  ## the same under the thread sanitizer
	$(CONFIGURE) --preset tsan
	cmake --build --preset tsan --parallel $(JOBS)
	ctest --preset tsan

fuzz:  ## parsers of bytes from the network under libFuzzer (clang), for FUZZ_SECONDS
	@tools/setup --fuzz
	$(CONFIGURE) --preset fuzz
	cmake --build --preset fuzz --parallel $(JOBS)
	@mkdir -p build/fuzz/corpus
	cd build/fuzz && bin/fuzz_net -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1 \
	  corpus $(CURDIR)/tests/fuzz/corpus

clean:  ## remove build/
	rm -rf build

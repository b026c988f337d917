# SPDX-License-Identifier: MIT
#
# A thin front for CMake: see README.md. Works on a fresh Debian or Ubuntu machine: scripts/setup
# installs what a target needs and the machine lacks.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CTEST_ARGS ?=
MAKEFLAGS += --no-print-directory
# What `make run` shows.
RUN_COMMAND ?= build/tarn replay --repeat 3 --stealing always traces/*.trace.gz

.PHONY: all run test test-release bench check install clean
.PHONY: build dev asan tsan coverage fuzz test-asan test-tsan test-coverage test-clang test-valgrind
all: build

# Each profile of cmake/profiles.cmake has its build folder; release has build/ itself.
folder = $(if $(filter build,$(1)),build,build-$(1))
build dev asan tsan coverage fuzz:
	@scripts/setup $@
	@cmake -S . -B $(call folder,$@) -DTARN_PROFILE=$(if $(filter build,$@),release,$@) > /dev/null
	@cmake --build $(call folder,$@) -j $(JOBS)

run: build
	$(RUN_COMMAND)

# The whole suite with every assertion on; before it, what is quick against the release build.
test: test-release dev
	cd build-dev && ctest --output-on-failure -j $(JOBS) $(CTEST_ARGS)

test-release: build
	cd build && ctest --output-on-failure -j $(JOBS) -L 'unit|conform|sim|example' $(CTEST_ARGS)

test-asan test-tsan test-coverage: test-%: %
	cd build-$* && ctest --output-on-failure -j $(JOBS) -LE checks $(CTEST_ARGS)
	$(if $(filter coverage,$*),scripts/coverage)

# A second compiler, with its own warnings.
test-clang:
	@scripts/setup check
	@cmake -S . -B build-clang -DTARN_PROFILE=dev -DCMAKE_C_COMPILER=clang > /dev/null
	@cmake --build build-clang -j $(JOBS)
	cd build-clang && ctest --output-on-failure -j $(JOBS) -L 'unit|conform|sim|example' $(CTEST_ARGS)

# The unit tests of the release build.
test-valgrind: build
	@scripts/setup valgrind
	scripts/valgrind build

bench: build
	scripts/bench

check: dev
	@scripts/setup check
	scripts/check/all build-dev

install: build
	cmake --install build --prefix $(abspath $(PREFIX))

clean:
	rm -rf build $(addprefix build-,dev asan tsan clang coverage fuzz)

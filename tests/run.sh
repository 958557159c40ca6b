#!/usr/bin/env bash
# Everything that must hold before a change is accepted: installs what is missing, builds, runs the core tests
# under the sanitizers, compiles the CUDA preset where there is a CUDA compiler, and runs every test of the
# release build. Stops at the first failure with its exit status; the last line is ctest's own.
# README.md beside it says what each phase is for.
# Usage: tests/run.sh   (from anywhere; about 2 GB of disk under build/)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly jobs=2

# Compiler cache hits across clones at different paths.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

phase() {
  printf '\n== %s (%d s)\n' "$1" "$SECONDS"
}

# configure PRESET [CMAKE ARGUMENT...]: its output only when it fails.
configure() {
  local log
  log=$(mktemp)
  if ! cmake --preset "$@" >"$log" 2>&1; then
    cat "$log"
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# ThreadSanitizer of g++ 12 cannot start where mmap is randomised by more than 28 bits.
without_randomisation() {
  if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ] && setarch -R true 2>/dev/null; then
    setarch -R "$@"
  else
    "$@"
  fi
}

sanitized_core_tests() {
  local preset=$1
  phase "core tests, preset $preset"
  configure "$preset"
  cmake --build --preset "$preset" -j "$jobs" --target core_tests
  # No detect_stack_use_after_return: with it g++ 12 puts vectors of 64 bytes at addresses that are not.
  ASAN_OPTIONS=check_initialization_order=1 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=history_size=7:second_deadlock_stack=1 \
    without_randomisation ctest --preset "$preset" -L '^core$' -j "$jobs"
}

cuda_compiles() {
  if ! command -v nvcc >/dev/null; then
    phase "no nvcc on PATH: the cuda preset is not compiled"
    return
  fi
  phase "compile, preset cuda"
  configure cuda -DAUGUR_TESTS=OFF
  cmake --build --preset cuda -j "$jobs"
}

phase "packages"
deploy/install_packages.sh build test

phase "build, preset release"
configure release -DAUGUR_TESTS=ON
cmake --build --preset release -j "$jobs"

sanitized_core_tests asan
sanitized_core_tests tsan
cuda_compiles

phase "all tests, preset release"
ctest --preset release -j "$jobs"

#!/usr/bin/env bash
# From a fresh Debian 12 to an answer: installs what is missing, builds, starts augurd on the bundled model,
# lets it read deploy/handbook.txt and asks for a fact that is hidden there.
# Usage: deploy/quickstart.sh [--keep]
#   --keep   leave the daemon running and print its address
set -euo pipefail

readonly question='What is the special magic number for amber-falcon mentioned in the text? The special magic number for amber-falcon is'
readonly expected='7391846'
readonly ready_limit_s=60

cd "$(dirname "${BASH_SOURCE[0]}")/.."
keep=no
daemon=
scratch=

say() {
  printf '\n== %s\n' "$1"
}

parse_arguments() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --keep) keep=yes ;;
      -h | --help)
        sed -n '2,5s/^# \{0,1\}//p' deploy/quickstart.sh
        exit 0
        ;;
      *)
        echo "unknown argument: $1 (see --help)" >&2
        exit 2
        ;;
    esac
    shift
  done
}

build() {
  # A build that exists keeps its settings; a new one leaves the tests out.
  if [ ! -f build/release/CMakeCache.txt ]; then
    cmake --preset release -DAUGUR_TESTS=OFF >"$scratch/configure.log" 2>&1 || {
      cat "$scratch/configure.log" >&2
      return 1
    }
  fi
  cmake --build --preset release --target augurd augur -j "$(nproc)"
}

start_daemon() {
  setsid build/release/bin/augurd --model deploy/models/demo-9m --listen 127.0.0.1:0 --metrics 127.0.0.1:0 \
    --port-file "$scratch/ports" >"$scratch/augurd.log" 2>&1 &
  daemon=$!
  local waited=0
  until [ -s "$scratch/ports" ]; do
    if ! kill -0 "$daemon" 2>/dev/null || [ "$waited" -ge $((ready_limit_s * 10)) ]; then
      echo "augurd did not become ready; it says:" >&2
      cat "$scratch/augurd.log" >&2
      return 1
    fi
    sleep 0.1
    waited=$((waited + 1))
  done
}

address_of() {
  awk -v what="$1" '$1 == what { print $2 }' "$scratch/ports"
}

stop_daemon() {
  if [ -n "$daemon" ] && kill -TERM "$daemon" 2>/dev/null; then
    wait "$daemon" || echo "augurd ended with status $?" >&2
  fi
  daemon=
}

clean_up() {
  if [ -n "$daemon" ] && [ "$keep" = kept ]; then
    return
  fi
  stop_daemon
  if [ -n "$scratch" ]; then
    rm -rf "$scratch"
  fi
}

ask() {
  local progress=always
  if [ -t 2 ]; then
    progress=auto
  fi
  build/release/bin/augur complete --server "$(address_of grpc)" -f deploy/handbook.txt -q "$question" \
    --temperature 0 --max-tokens 32 --stop $'\n' --progress "$progress" --timings --deadline 300 >"$scratch/answer"
}

main() {
  parse_arguments "$@"
  scratch=$(mktemp -d)
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM

  say "Packages"
  deploy/install_packages.sh build
  say "Build"
  build
  say "Start augurd on deploy/models/demo-9m"
  start_daemon
  build/release/bin/augur info --server "$(address_of grpc)"

  say "Ask about deploy/handbook.txt ($(wc -c <deploy/handbook.txt) bytes)"
  echo "Question: $question"
  ask

  say "Answer"
  sed 's/^ *//' "$scratch/answer"
  echo
  if ! grep -q "$expected" "$scratch/answer"; then
    echo "WRONG: the answer should contain $expected." >&2
    exit 1
  fi
  echo "Right: $expected is the number that is hidden in the document."

  if [ "$keep" = yes ]; then
    keep=kept
    echo "augurd stays: gRPC $(address_of grpc), metrics http://$(address_of metrics)/metrics, log $scratch/augurd.log"
    echo "Try: build/release/bin/augur complete --server $(address_of grpc) 'The package'    Stop: kill $daemon"
  else
    stop_daemon
    echo "augurd is stopped. Run again with --keep to leave it running."
  fi
}

main "$@"

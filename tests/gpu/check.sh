#!/usr/bin/env bash
# Checks a carried package (deploy/package.sh OUT build/cuda --tests ...) on a machine with a GPU: the same test
# bodies as on the CPU, goldens, sanitizers, and augurd over gRPC. Prints a line a step; logs go to LOGS.
# Usage, in the repository's root: tests/gpu/check.sh PACKAGE LOGS [STEP...]
#   steps: twins golden tiers copies sanitizers serve serve_tiers (default: all)
# serve needs python3 with grpcio, PACKAGE/python (the stubs of build/*/tests/e2e/python) and
# PACKAGE/needles_cpu.json (needles.py ask, of a daemon on the CPU); serve_tiers likewise
# PACKAGE/needles_sparse_cpu.json (needles.py ask --alone, of one with residency tiered and both policies sparse).
set -uo pipefail

readonly package=$(realpath "$1") logs=$(realpath "$2")
shift 2
readonly steps=${*:-twins golden tiers copies sanitizers serve serve_tiers}
readonly bin=$package/bin
failed=0

# step NAME LIMIT_S COMMAND...: runs it, and says how it ended.
step() {
  local name=$1 limit=$2 started=$SECONDS status
  shift 2
  timeout -k 5 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  echo "$name: status $status, $((SECONDS - started)) s: $(grep -E '\[  (PASSED|FAILED)|ERROR SUMMARY|CHECK failed|device failure|"right"|"equal"' "$logs/$name.log" | tail -2 | tr '\n' ' ' | cut -c1-600)"
}

has() { [[ " $steps " == *" $1 "* ]]; }

# wait_for FILE: until it has something in it, at most a minute.
wait_for() {
  local i
  for i in $(seq 600); do
    [ -s "$1" ] && return 0
    sleep 0.1
  done
  return 1
}

serve() {
  local port=$logs/port address daemon
  rm -f "$port"
  "$bin/augurd" --device cuda:0 --model "$package/models/demo-9m" --listen 127.0.0.1:0 --metrics 127.0.0.1:0 \
    --port-file "$port" --set kv_bytes=8GiB --set batch=64 --set batched_tokens=4096 >"$logs/augurd.log" 2>&1 &
  daemon=$!
  if ! wait_for "$port"; then
    echo "serve: augurd did not get ready: $(tail -1 "$logs/augurd.log")"
    failed=1
    return
  fi
  address=$(awk '$1 == "grpc" { print $2 }' "$port")
  step needles 300 python3 -B tests/gpu/needles.py ask --server "$address" --stubs "$package/python" \
    --out "$logs/needles_gpu.json"
  step needles_against_cpu 20 python3 -B tests/gpu/needles.py compare "$package/needles_cpu.json" \
    "$logs/needles_gpu.json" --differences "$logs/differences.json"
  echo "steps: $(curl -s "http://$(awk '$1 == "metrics" { print $2 }' "$port")/metrics" |
    grep -E '^augur_step_(host_)?seconds_(sum|count)' | tr '\n' ' ')"
  kill "$daemon"
  wait "$daemon"
  echo "augurd: status $? after SIGTERM"
}

# A small device pool, so that nearly all of a history is in host memory.
serve_tiers() {
  local port=$logs/port_tiers address daemon
  rm -f "$port"
  "$bin/augurd" --device cuda:0 --model "$package/models/demo-9m" --listen 127.0.0.1:0 --metrics 127.0.0.1:0 \
    --port-file "$port" --set residency=tiered --set prefill_policy=sparse --set decode_policy=sparse \
    --set kv_bytes=256MiB --set host_kv_bytes=4GiB --set batch=16 --set batched_tokens=2048 >"$logs/augurd_tiers.log" 2>&1 &
  daemon=$!
  if ! wait_for "$port"; then
    echo "serve_tiers: augurd did not get ready: $(tail -1 "$logs/augurd_tiers.log")"
    failed=1
    return
  fi
  address=$(awk '$1 == "grpc" { print $2 }' "$port")
  step needles_tiers 200 python3 -B tests/gpu/needles.py ask --server "$address" --stubs "$package/python" \
    --out "$logs/needles_tiers.json"
  step needles_tiers_against_cpu 20 python3 -B tests/gpu/needles.py compare "$package/needles_sparse_cpu.json" \
    "$logs/needles_tiers.json"
  echo "tiers: $(curl -s "http://$(awk '$1 == "metrics" { print $2 }' "$port")/metrics" |
    grep -E '^augur_(prefetch_blocks_total|transfer_wait_seconds_(sum|count)|transfer_bytes_total)' | tr '\n' ' ')"
  kill "$daemon"
  wait "$daemon"
  echo "augurd: status $? after SIGTERM"
}

# A device that cannot do what is asked, and one that breaks.
refusals() {
  "$bin/augurd" --device cuda:7 --model "$package/models/demo-9m"
  echo "status $?"
  "$bin/augurd" --device cuda:0 --model "$package/models/demo-9m" --set kv_bytes=4TiB
  echo "status $?"
  "$bin/augurd" --device cuda:0 --model "$package/models/demo-9m" --set infinigen_basis=deploy/models/demo-9m/infinigen_basis.safetensors
  echo "status $?"
  CUDA_VISIBLE_DEVICES= "$bin/augurd" --device cuda:0 --model "$package/models/demo-9m"
  echo "status $?"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
has twins && step twins 200 "$bin/kernels_twins_test"
if has golden; then
  step golden 100 "$bin/golden_model_test" --gtest_filter='*cuda*'
  step run_ahead 100 "$bin/run_ahead_test"
fi
has tiers && step tiers 100 "$bin/device_tiers_test" --gtest_filter='*cuda*'
has copies && step copies 60 "$bin/kernels_page_copy_test"
if has sanitizers; then
  small='*NoOther*:*Alone*:*LargeScores*:*ALaterNaN*:*AnOffset*:*Recorded*:*Greedy*:*Ties*:*InPlace*:-*ManySegments*'
  for tool in memcheck racecheck synccheck initcheck; do
    step "$tool" 240 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$bin/kernels_twins_test" --gtest_filter="$small"
    grep -E '=========' "$logs/$tool.log" | sort | uniq -c | sort -rn | head -8 | cut -c1-200
  done
  # Rows enough that the ring of pages comes round; only its kernel, since all of them take minutes.
  step racecheck_ring 90 compute-sanitizer --tool racecheck --error-exitcode 9 --kernel-regex kns=AttendDecodeRows \
    "$bin/kernels_twins_test" --gtest_filter='TwinAttentionTest.DecodeRowsWithLists*'
fi
if has serve; then
  serve
  refusals >"$logs/refusals.log" 2>&1
  cat "$logs/refusals.log" 2>/dev/null
fi
has serve_tiers && serve_tiers
exit $failed

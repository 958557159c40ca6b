#!/usr/bin/env bash
# Checks a carried package (deploy/package.sh OUT build/cuda --tests ...) on a machine with a GPU: the same test
# bodies as on the CPU, goldens, sanitizers, and augurd over gRPC. Prints a line a step; logs go to LOGS.
# Usage, in the repository's root: tests/gpu/check.sh PACKAGE LOGS [STEP...]
#   steps: twins golden tiers copies sanitizers sampled serve serve_tiers serve_sampled (default: all)
# serve needs python3 with grpcio, PACKAGE/python (the stubs of build/*/tests/e2e/python) and
# PACKAGE/needles_cpu.json (needles.py ask, of a daemon on the CPU); serve_tiers asks the CPU itself, unless it finds
# PACKAGE/needles_POLICY_cpu.json (needles.py ask --alone). serve_sampled needs PACKAGE/bin/augur-eval.
set -uo pipefail

if [ $# -lt 2 ]; then
  echo "usage: tests/gpu/check.sh PACKAGE LOGS [STEP...]" >&2
  exit 2
fi
readonly package=$(realpath "$1") logs=$(realpath "$2")
shift 2
readonly steps=${*:-twins golden tiers copies sanitizers sampled serve serve_tiers serve_sampled}
readonly bin=$package/bin
failed=0

# step NAME LIMIT_S COMMAND...: runs it, and says how it ended.
step() {
  local name=$1 limit=$2 started=$SECONDS status
  shift 2
  timeout -k 5 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  echo "$name: status $status, $((SECONDS - started)) s: $(grep -E '\[  (PASSED|FAILED)|ERROR SUMMARY|CHECK failed|device failure|"right"|"equal"|"all"' "$logs/$name.log" | tail -3 | tr '\n' ' ' | cut -c1-900)"
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

# daemon NAME ARGUMENT...: augurd with the bundled model in the background; sets pid and address.
daemon() {
  local name=$1 port=$logs/port_$1
  shift
  rm -f "$port"
  "$bin/augurd" --model "$package/models/demo-9m" --listen 127.0.0.1:0 --metrics 127.0.0.1:0 --port-file "$port" "$@" \
    >"$logs/augurd_$name.log" 2>&1 &
  pid=$!
  if ! wait_for "$port"; then
    echo "$name: augurd did not get ready: $(tail -1 "$logs/augurd_$name.log")"
    failed=1
    return 1
  fi
  address=$(awk '$1 == "grpc" { print $2 }' "$port")
}

stop_daemon() {
  kill "$1"
  wait "$1"
  echo "augurd: status $? after SIGTERM"
}

serve() {
  local address pid
  daemon serve --device cuda:0 --set kv_bytes=8GiB --set batch=64 --set batched_tokens=4096 || return
  step needles 300 python3 -B tests/gpu/needles.py ask --server "$address" --stubs "$package/python" \
    --out "$logs/needles_gpu.json"
  step needles_against_cpu 20 python3 -B tests/gpu/needles.py compare "$package/needles_cpu.json" \
    "$logs/needles_gpu.json" --differences "$logs/differences.json"
  echo "steps: $(curl -s "http://$(awk '$1 == "metrics" { print $2 }' "$logs/port_serve")/metrics" |
    grep -E '^augur_step_(host_)?seconds_(sum|count)' | tr '\n' ' ')"
  stop_daemon "$pid"
}

# What a policy needs beside its name.
knobs_of() {
  local model=$package/models/demo-9m
  echo "--set prefill_policy=$1 --set decode_policy=$1"
  case $1 in
    forecast) echo "--set forecast_heads=$model/forecast.safetensors" ;;
    infinigen) echo "--set prefill_policy=sparse --set infinigen_basis=$model/infinigen_basis.safetensors" ;;
  esac
}

# Every policy with a small device pool, so that nearly all of a history is in host memory, against the CPU's answers:
# PACKAGE/needles_POLICY_cpu.json, or made here meanwhile.
serve_tiers() {
  local policy asking=() cpu_pids=() address pid
  for policy in dense sparse forecast infinigen; do
    [ -e "$package/needles_${policy}_cpu.json" ] && continue
    daemon "cpu_$policy" --device cpu --set threads=6 $(knobs_of "$policy") || continue
    cpu_pids+=("$pid")
    python3 -B tests/gpu/needles.py ask --alone --server "$address" --stubs "$package/python" \
      --out "$package/needles_${policy}_cpu.json" >"$logs/needles_cpu_$policy.log" 2>&1 &
    asking+=($!)
  done
  for policy in dense sparse forecast infinigen; do
    daemon "$policy" --device cuda:0 --set residency=tiered $(knobs_of "$policy") --set kv_bytes=256MiB \
      --set host_kv_bytes=4GiB --set batch=16 --set batched_tokens=2048 || continue
    step "needles_$policy" 200 python3 -B tests/gpu/needles.py ask --server "$address" --stubs "$package/python" \
      --out "$logs/needles_$policy.json"
    echo "tiers: $(curl -s "http://$(awk '$1 == "metrics" { print $2 }' "$logs/port_$policy")/metrics" |
      grep -E '^augur_(prefetch_blocks_total|transfer_wait_seconds_(sum|count)|transfer_bytes_total)' |
      grep -v ' 0$' | sed 's/model_name="demo-9m",//' | tr '\n' ' ')"
    stop_daemon "$pid"
  done
  [ ${#asking[@]} -eq 0 ] || wait "${asking[@]}"
  for pid in "${cpu_pids[@]}"; do stop_daemon "$pid"; done
  for policy in dense sparse forecast infinigen; do
    step "needles_${policy}_against_cpu" 20 python3 -B tests/gpu/needles.py compare \
      "$package/needles_${policy}_cpu.json" "$logs/needles_$policy.json"
  done
}

# 200 questions a task, of each way to read values: the same for the CPU and the device, which are compared.
readonly questions=(--documents 20 --values exact,64,128 --concurrency 8 --documents-at-once 4)

# asks_sampled NAME POLICY ARGUMENT...: sets asks, the command that puts questions at 8K to the daemon at $address.
asks_sampled() {
  local name=$1 policy=$2
  shift 2
  asks=("$bin/augur-eval" --address "$address" --text deploy/handbook.txt --text tests/e2e/corpus/mail_gateway.txt \
    --length 8000 --questions 10 --policies "$policy" --json "$logs/$name.json" "$@")
}

# ask_of_cpu: the questions under each policy, of augurd on the CPU at $address.
ask_of_cpu() {
  local policy asks
  for policy in dense forecast; do
    asks_sampled "values_${policy}_cpu" "$policy" "${questions[@]}"
    timeout -k 5 600 "${asks[@]}"
  done
}

# Sampled values: the CPU's answers and the device's, dense from its own memory and forecast over a host pool; there
# once more one question at a time, which must not change a letter.
serve_sampled() {
  local address pid cpu_pid asking policy pool asks
  local offers="--set attention.values.override=true
    --set forecast_heads=$package/models/demo-9m/forecast.safetensors"
  daemon cpu_sampled --device cpu --set threads=12 --set kv_bytes=4GiB --set batch=32 $offers || return
  cpu_pid=$pid
  ask_of_cpu >"$logs/values_cpu.log" 2>&1 &
  asking=$!
  for policy in dense forecast; do
    pool="--set kv_bytes=8GiB"
    [ $policy = dense ] || pool="--set residency=tiered --set kv_bytes=512MiB --set host_kv_bytes=4GiB"
    daemon "sampled_$policy" --device cuda:0 $offers $pool --set batch=32 --set batched_tokens=2048 || continue
    asks_sampled "values_$policy" "$policy" "${questions[@]}"
    step "values_$policy" 100 "${asks[@]}"
    asks_sampled "values_${policy}_alone" "$policy" --documents 3 --values 64
    step "values_${policy}_alone" 60 "${asks[@]}"
    step "values_${policy}_in_any_batch" 20 python3 -B tests/gpu/evaluations.py texts \
      "$logs/values_$policy.json" "$logs/values_${policy}_alone.json"
    echo "sampled: $(curl -s "http://$(awk '$1 == "metrics" { print $2 }' "$logs/port_sampled_$policy")/metrics" |
      grep -E '^augur_(sampled_|decode_fetched_bytes_total)' | grep -v ' 0$' | sed 's/model_name="demo-9m",\?//' | tr '\n' ' ')"
    stop_daemon "$pid"
  done
  wait "$asking"
  stop_daemon "$cpu_pid"
  for policy in dense forecast; do
    step "values_${policy}_against_cpu" 20 python3 -B tests/gpu/evaluations.py accuracy \
      "$logs/values_${policy}_cpu.json" "$logs/values_$policy.json"
  done
}

# A device that cannot do what is asked, and one that breaks.
refusals() {
  "$bin/augurd" --device cuda:7 --model "$package/models/demo-9m"
  echo "status $?"
  "$bin/augurd" --device cuda:0 --model "$package/models/demo-9m" --set kv_bytes=4TiB
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
if has sampled; then
  step sampled_twins 60 "$bin/kernels_twins_test" --gtest_filter='*TwinSampled*:*TwinSumValues*'
  step sampled_tiers 100 "$bin/device_tiers_test" --gtest_filter='*DeviceSampled*cuda*'
  small='*TwinSampledTest.ManyDraws*:*NanStays*:*WhereValuesLie*'
  step sampled_memcheck 60 compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$bin/kernels_twins_test" --gtest_filter="$small:*AMillionTokens*:*TwinSumValues*"
  for tool in racecheck synccheck initcheck; do
    step "sampled_$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$bin/kernels_twins_test" --gtest_filter="$small"
    grep -E '=========' "$logs/sampled_$tool.log" | sort | uniq -c | sort -rn | head -4 | cut -c1-200
  done
fi
if has serve; then
  serve
  refusals >"$logs/refusals.log" 2>&1
  cat "$logs/refusals.log" 2>/dev/null
fi
has serve_tiers && serve_tiers
has serve_sampled && serve_sampled
exit $failed

#!/usr/bin/env bash
# Makes a folder that runs on a bare Ubuntu 24.04, or anything with glibc 2.35 and GCC 12's libstdc++ or newer:
# programs, the shared libraries they need, and the bundled model. Only the system's C and C++ libraries, the GPU's
# driver and the CUDA toolkit in /usr/local/cuda are left to the machine.
# Usage: deploy/package.sh OUT [BUILD] [--tests NAME...]
#   OUT       the folder to make; must be empty or not there yet
#   BUILD     the build to take the programs from (default: build/cuda)
#   --tests   names of test binaries to take along (those that read golden files find them in the current folder's repository)
set -euo pipefail

readonly programs=(augurd augur augur-bench)
readonly model=deploy/models/demo-9m
# What the machine has: the C and C++ libraries fit any newer system, the driver's and CUDA's belong to its GPU.
readonly from_system='^(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s|libcublas|libcublasLt|libcudart|libcuda)\.so'
# As linked by CMakeLists.txt.
readonly rpath='$ORIGIN/../lib'

fail() {
  echo "package.sh: $1" >&2
  exit 1
}

usage() {
  sed -n '2,8s/^# \{0,1\}//p' "$source_dir/deploy/package.sh"
}

parse_arguments() {
  build="$source_dir/build/cuda"
  tests=()
  out=
  local places=0
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --tests)
        shift
        tests=("$@")
        break
        ;;
      -*) fail "unknown argument: $1 (see --help)" ;;
      *)
        places=$((places + 1))
        case $places in
          1) out=$1 ;;
          2) build=$1 ;;
          *) fail "one argument too many: $1 (see --help)" ;;
        esac
        ;;
    esac
    shift
  done
  [ -n "$out" ] || fail "where to? (see --help)"
  [ -d "$build/bin" ] || fail "$build is not a build folder (no bin/ there)"
  if [ -e "$out" ] && [ -n "$(ls -A "$out")" ]; then
    fail "$out is not empty"
  fi
}

# "name path" of each shared library that program $1 needs, libraries of libraries included; path may be "not".
libraries_of() {
  env -u LD_LIBRARY_PATH -u LD_PRELOAD ldd "$1" | awk '$2 == "=>" { print $1, $3 }'
}

copy_program() {
  local from="$build/bin/$1" to="$out/bin/$1"
  [ -f "$from" ] || fail "$from is missing: build it first"
  cp "$from" "$to"
  strip "$to"
  if [[ "$(readelf -d "$to")" == *"(RPATH)"*"[$rpath"* ]]; then
    return
  fi
  # A build from before CMakeLists.txt said so. DT_RPATH, since libraries' own needs do not see DT_RUNPATH.
  command -v patchelf >/dev/null || fail "$from does not look for libraries in $rpath: link it again, or install patchelf"
  patchelf --force-rpath --set-rpath "$rpath:/usr/local/cuda/lib64" "$to"
}

copy_libraries() {
  local name path
  while read -r name path; do
    if [[ "$name" =~ $from_system ]]; then
      continue
    fi
    [ "$path" != not ] || fail "$name, which $1 needs, is not on this machine"
    if [ ! -e "$out/lib/$name" ]; then
      cp -L "$path" "$out/lib/$name"
    fi
  done < <(libraries_of "$build/bin/$1")
}

# Everything that is not the system's must be found inside.
check_program() {
  local name path
  while read -r name path; do
    if [[ "$name" =~ $from_system ]]; then
      continue
    fi
    [ "$(realpath -m "$path")" = "$(realpath "$out")/lib/$name" ] || fail "bin/$1 takes $name from $path"
  done < <(libraries_of "$out/bin/$1")
}

write_readme() {
  cat >"$out/README" <<'TEXT'
Start:  bin/augurd --model models/demo-9m       (gRPC on 127.0.0.1:50051, metrics on 127.0.0.1:9464)
Ask:    bin/augur complete 'The package'
Needs:  glibc 2.35 and libstdc++ of GCC 12 or newer; for a GPU its driver and the CUDA 13 toolkit in /usr/local/cuda.
TEXT
}

main() {
  source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  parse_arguments "$@"
  mkdir -p "$out/bin" "$out/lib" "$out/models"
  local name
  for name in "${programs[@]}" "${tests[@]}"; do
    copy_program "$name"
    copy_libraries "$name"
  done
  for name in "${programs[@]}" "${tests[@]}"; do
    check_program "$name"
  done
  cp -R "$source_dir/$model" "$out/models/"
  write_readme
  echo "$out: $(find "$out/bin" -type f | wc -l) programs, $(find "$out/lib" -type f | wc -l) libraries," \
    "$(du -sm --apparent-size "$out" | cut -f1) MiB ($(du -sm --apparent-size "$out/models" | cut -f1) of them models)"
}

main "$@"

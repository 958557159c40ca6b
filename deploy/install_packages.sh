#!/usr/bin/env bash
# Installs the Debian packages of the named groups (build, test) that are missing; asks apt nothing when there
# are none. Usage: deploy/install_packages.sh GROUP...
set -euo pipefail

list="$(dirname "$0")/packages.txt"

wanted() {
  local group
  for group in "$@"; do
    awk -v group="$group" '$1 !~ /^#/ && $2 == group { print $1 }' "$list"
  done
}

missing() {
  local package
  for package in "$@"; do
    if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$'; then
      echo "$package"
    fi
  done
}

main() {
  if [ $# -eq 0 ]; then
    echo "usage: $0 GROUP... (build, test)" >&2
    return 2
  fi
  local packages absent
  mapfile -t packages < <(wanted "$@")
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "No apt here: install by other means what corresponds to: ${packages[*]}" >&2
    return 0
  fi
  mapfile -t absent < <(missing "${packages[@]}")
  if [ "${#absent[@]}" -eq 0 ]; then
    return 0
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Missing packages, and neither root nor sudo to install them: ${absent[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "Installing ${#absent[@]} packages: ${absent[*]}"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${absent[@]}"
}

main "$@"

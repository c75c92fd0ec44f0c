#!/usr/bin/env bash
# Packs lossgaugectl with the shared libraries that it needs, but glibc, so that it runs on another x86-64 machine with this glibc or a newer one.
#
#   tests/device/bundle_ctl.sh build/cpu/bin/lossgaugectl DIR        then call DIR/lossgaugectl
set -euo pipefail
[[ $# == 2 && -x $1 ]] || { echo "usage: $0 LOSSGAUGECTL DIR" >&2; exit 2; }
mkdir -p "$2/lib"
ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|ld-linux[^/]*)\.so' | while read -r library; do
  install -m 644 "$(readlink -f "$library")" "$2/lib/$(basename "$library")"
done
install -m 755 "$1" "$2/lib/lossgaugectl"
strip "$2/lib/lossgaugectl"
cat >"$2/lossgaugectl" <<'EOF'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/lib exec "$here/lib/lossgaugectl" "$@"
EOF
chmod 755 "$2/lossgaugectl"

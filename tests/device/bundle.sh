#!/usr/bin/env bash
# Packs programs with the shared libraries that they need, but glibc, so that they run on another x86-64 machine with this glibc or a newer one.
#
#   tests/device/bundle.sh DIR PROGRAM...        then call DIR/NAME; for pipeline_8b.py, whose programs are in DIR/bin, give DIR/bin here
set -euo pipefail
(($# > 1)) || { echo "usage: $0 DIR PROGRAM..." >&2; exit 2; }
directory=$1
shift
mkdir -p "$directory/lib"
for program; do
  [[ -x $program ]] || { echo "$0: $program is no program" >&2; exit 2; }
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|ld-linux[^/]*)\.so' | while read -r library; do
    install -m 644 "$(readlink -f "$library")" "$directory/lib/$(basename "$library")"
  done
  name=$(basename "$program")
  install -m 755 "$program" "$directory/lib/$name"
  strip "$directory/lib/$name"
  cat >"$directory/$name" <<EOT
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
LD_LIBRARY_PATH=\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec "\$here/lib/$name" "\$@"
EOT
  chmod 755 "$directory/$name"
done

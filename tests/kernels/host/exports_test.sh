#!/usr/bin/env bash
# exports_test.sh NM LIBRARY MAP HEADER: the library exports what the map lists, and that is what the header declares.
set -euo pipefail
nm=$1 library=$2 map=$3 header=$4
exported=$("$nm" -D --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort)
mapped=$(sed -n 's/^ *\(lg_[a-z0-9_]*\);.*/\1/p' "$map" | sort)
declared=$(grep -o 'LG_API [^;]*' "$header" | grep -o 'lg_[a-z0-9_]*(' | tr -d '(' | sort)
status=0
diff <(echo "$mapped") <(echo "$exported") || { echo "exports_test: the map (<) and nm -D (>) differ" >&2; status=1; }
diff <(echo "$declared") <(echo "$exported") || { echo "exports_test: the header (<) and nm -D (>) differ" >&2; status=1; }
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
foreign=$(grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|ld-linux[^ ]*|lib[alt]*san|libubsan)\.so' <<<"$needed" || true)
[[ -z $foreign ]] || { echo "exports_test: the library needs $foreign" >&2; status=1; }
exit $status

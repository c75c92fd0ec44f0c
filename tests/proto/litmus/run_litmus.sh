#!/usr/bin/env bash
# run_litmus.sh SPIN CC MODEL: checks the ring model exhaustively, and that it fails as soon as one of its orders is taken away.
set -euo pipefail
spin=$1 cc=$2 model=$3
command -v "$spin" >/dev/null || { echo "skipped: spin is not installed"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# Exhaustive search with these macros; says how many errors were found.
errors() {
  rm -f pan*
  "$spin" "$@" -a "$model" >spin.log || { cat spin.log >&2; exit 1; }
  "$cc" -O2 -w -DSAFETY -DNOFAIR -o pan pan.c
  ./pan -m1000000 >pan.log
  grep -q 'Search not completed\|max search depth too small' pan.log && { [[ $(grep -c 'errors: 0' pan.log) -eq 0 ]] || { cat pan.log >&2; exit 1; }; }
  sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log
}

failed=0
for slots in 1 2 3; do
  found=$(errors -DSLOTS="$slots")
  echo "protocol, $slots slot(s): $found errors in $(sed -n 's/ *\([0-9]*\) states, stored.*/\1/p' pan.log) states"
  [[ $found -eq 0 ]] || failed=1
done
for slots in 1 2 3; do
  found=$(errors -DGPU -DSLOTS="$slots")
  echo "protocol of a GPU, $slots slot(s): $found errors in $(sed -n 's/ *\([0-9]*\) states, stored.*/\1/p' pan.log) states"
  [[ $found -eq 0 ]] || failed=1
done
for order in RELAXED_PAYLOAD EARLY_EVEN RELAXED_READER EARLY_CURSOR "GPU EARLY_EVEN" "GPU EXACT_CURSOR" "GPU NO_CHECKSUM" "GPU AHEAD=2" "GPU BY_CURSOR"; do
  # shellcheck disable=SC2086
  found=$(errors $(printf -- '-D%s ' $order))
  echo "mutation $order: $found error(s), at least 1 expected"
  [[ $found -ge 1 ]] || failed=1
done
exit $failed

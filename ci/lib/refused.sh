#!/usr/bin/env bash
# refused.sh PATTERN COMMAND...: succeeds if the command fails and says the pattern (grep's) on stderr.
pattern=$1
shift
said=$("$@" 2>&1 >/dev/null) && { echo "it succeeded"; exit 1; }
printf '%s\n' "$said" >&2
grep -q -- "$pattern" <<<"$said"

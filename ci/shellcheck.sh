#!/usr/bin/env bash
# Runs shellcheck over every shell script. Optional: skipped where it is not installed.
source "$(dirname "$0")/lib.sh"
command -v shellcheck >/dev/null || nothing_to_run "shellcheck is not installed"
scripts=()
while IFS= read -r -d '' file; do
    if [[ $file == *.sh ]] || grep -q '^#!.*bash' <<<"$(head -n 1 "$file" | tr -d '\0')"; then scripts+=("$file"); fi
done < <(git_files ci .ci scripts)
shellcheck -x --severity style "${scripts[@]}"
note "${#scripts[@]} scripts"

#!/usr/bin/env bash
# House rules that no other tool holds. Prints one line per finding: file:line: what.
source "$(dirname "$0")/lib.sh"
LINES_MAX=600     # longer files say why in their first line ("long: ...")
SAFETY_REACH=4    # lines above an `unsafe` in which its SAFETY argument starts
scratch_dir
findings=$SCRATCH/findings.txt
paths=$SCRATCH/paths # what ci/lib/rust_paths.awk prints of all sources
: >"$findings"

# Patterns are written with [] so that this file does not find itself.
UNFINISHED='\b(TOD[O]|FIXM[E]|XX[X])\b|\b(dbg|todo|unimplemented)[!]'
MACHINE='(^|[^A-Za-z0-9_.-])/(work|root|home|Users)/[A-Za-z0-9_.]|/tmp/w[t]/|shared/desig[n]'

# found REGEX WHAT PATTERN...: lines of the named files that match.
found() {
    local regex=$1 what=$2
    shift 2
    git_files "$@" | xargs -0 -r grep -HnIP -e "$regex" | cut -d: -f1,2 | sed "s/\$/: $what/" || true
}

long_files() {
    git_files '*.rs' '*.sh' '*.awk' | xargs -0 awk -v most="$LINES_MAX" '
        FNR == 1 { tell(); file = FILENAME; reason = $0 ~ /long: / }
        { lines = FNR }
        function tell() {
            if (lines > most && !reason)
                print file ":1: " lines " lines; over " most " needs its reason in line 1 (long: ...)"
        }
        END { tell() }'
}

# Every `unsafe` block and impl has its argument near; clippy sees only the configured build.
unargued_unsafe() {
    awk -F '\t' '$1 == "word" && ($3 == "{" || $3 == "impl") { print $2 }' "$paths" |
        awk -F : -v reach="$SAFETY_REACH" '
            $1 != file { file = $1; n = 0; while ((getline text < file) > 0) line[++n] = text; close(file) }
            {
                argued = 0
                for (i = $2 - reach; i <= $2; i++) if (line[i] ~ /SAFETY:/) argued = 1
                if (!argued) print $0 ": unsafe without a SAFETY comment"
            }'
}

# Paths that one place may name, and what pure code may not: a dependency and the compiler hold the rest.
paths_at_home() {
    awk -F '\t' '
        $1 != "path" { next }
        { file = $2; sub(/:[0-9]+$/, "", file) }
        $4 ~ /^(std|core|loom)::sync::(atomic(::|$)|\*$|self$)/ &&
            file !~ /^transport\/runtime\/src\/sync\.rs$/ { print $2 ": names " $4 "; atomics come from tidewater_runtime::sync" }
        $4 ~ /(^|::)(Instant|SystemTime)::now$/ &&
            file !~ /^transport\/runtime\/src\/clock\.rs$|^bench\/baselines\/|^xtask\// { print $2 ": names " $4 "; the time comes from tidewater_runtime::clock" }
        $4 ~ /^(rdma_sys|rdma_mummy_sys)(::|$)/ &&
            file != "transport/verbs/src/ffi.rs" { print $2 ": names " $4 "; only transport/verbs/src/ffi.rs may" }
        file ~ /^transport\/protocol\/src\/(layout|wire)/ && file !~ /\/tests(\.rs$|\/)/ && $5 != "test" &&
            $4 ~ /^std::(env|fs|io|net|os|process|thread)(::|$)/ { print $2 ": formats are pure and may not name " $4 }
    ' "$paths"
}

# Relative links of the Markdown files lead to a file, and their anchors to a heading.
dead_links() {
    local file line link target anchor
    git_files '*.md' | xargs -0 awk '
        /^```/ { code = !code }
        FNR == 1 { code = /^```/ }
        code { next }
        {
            rest = $0; gsub(/`[^`]*`/, "", rest)
            while (match(rest, /\]\([^) ]+\)/)) {
                print FILENAME "\t" FNR "\t" substr(rest, RSTART + 2, RLENGTH - 3)
                rest = substr(rest, RSTART + RLENGTH)
            }
        }' |
        while IFS=$'\t' read -r file line link; do
            [[ $link =~ ^(https?|mailto): ]] && continue
            target=${link%%#*} anchor=
            [[ $link != *'#'* ]] || anchor=${link#*#}
            target=${target:+$(dirname "$file")/$target}
            target=${target:-$file}
            if [[ ! -e $target ]]; then
                say "$file:$line: link leads nowhere: $link"
            elif [[ -n $anchor && $target == *.md ]] && ! grep -qxF -- "$anchor" <<<"$(headings "$target")"; then
                say "$file:$line: no heading for the link $link"
            fi
        done
}

# headings FILE: the anchors a Markdown viewer gives its headings.
headings() {
    awk '/^```/ { code = !code } !code && /^#+ / {
        sub(/^#+ +/, ""); $0 = tolower($0); gsub(/[^a-z0-9 _-]/, ""); gsub(/ /, "-"); print }' "$1"
}

# Each mutant has a row in docs/TESTING.md, and each row a test that exists.
mutant_table() {
    local mutant crate target test required functions
    [[ -f docs/TESTING.md ]] || { say "docs/TESTING.md:1: missing"; return; }
    mutants >"$SCRATCH/mutants"
    mutant_rows >"$SCRATCH/rows"
    cut -f1 "$SCRATCH/rows" >"$SCRATCH/caught"
    while IFS=$'\t' read -r mutant crate target test; do
        grep -qxF -- "$mutant" "$SCRATCH/mutants" ||
            say "docs/TESTING.md:1: $mutant is not in transport/protocol/src/mutants.rs"
        functions=$SCRATCH/functions.$crate # names of the crate's functions, once for all of its rows
        [[ -e $functions ]] ||
            git_files "$(crate_folder "$crate")/*.rs" | { xargs -0 -r grep -hoE 'fn [A-Za-z0-9_]+' || true; } >"$functions"
        grep -qxF -- "fn ${test##*::}" "$functions" ||
            say "docs/TESTING.md:1: $mutant: no test ${test##*::} in $crate"
    done <"$SCRATCH/rows"
    required=$(budget | awk -F '\t' '$1 == "stage.mutants" && $2 == "required" { print $3 }')
    while IFS= read -r mutant; do
        if [[ $required == true ]]; then
            say "docs/TESTING.md:1: no test catches the mutant $mutant"
        else
            warn "no test catches the mutant $mutant yet"
        fi
    done < <(grep -vxF -f "$SCRATCH/caught" "$SCRATCH/mutants")
}

# A flake has its commit and its cause.
flakes() {
    awk -F '\t' '!/^#/ && (NF != 3 || split($1, t, " ") != 3 || $2 !~ /^[0-9a-f]{7,40}$/ || $3 == "") {
        print FILENAME ":" FNR ": not: crate target name, a tab, commit, a tab, cause" }' "$FLAKES"
}

source ci/lib/mutants.sh
git_files '*.rs' | xargs -0 awk -f ci/lib/rust_paths.awk >"$paths"
{
    flakes
    long_files
    found '[^\x00-\x7F]' 'not ASCII' '*.rs' '*.sh' '*.awk' '*.toml' '*.c' '*.h'
    found "$UNFINISHED" 'unfinished: finish it or file it' '*.rs' '*.sh' '*.awk' '*.toml' '*.md'
    found "$MACHINE" 'names a path of one machine' '*.rs' '*.sh' '*.awk' '*.toml' '*.md' ci .ci scripts
    found '[ \t]+$' 'blanks at the end of the line' '*.rs' '*.sh' '*.awk' '*.toml'
    unargued_unsafe
    paths_at_home
    dead_links
    mutant_table
} >"$findings"
if [[ -s $findings ]]; then
    sort -u "$findings"
    die "$(sort -u "$findings" | wc -l) findings"
fi
note "$(git_files '*' | tr '\0' '\n' | wc -l) files"

# shellcheck shell=bash
# The mutants: their names in the code, and the table of docs/TESTING.md.

# mutants: the names that TIDEWATER_MUTANT understands.
mutants() {
    sed -n '/^mutants! {/,/^}/s/.* = "\([a-z0-9-]*\)";$/\1/p' transport/protocol/src/mutants.rs
}

# mutant_rows: the table's rows as mutant, crate, target, test.
mutant_rows() {
    awk -F '|' '
        function cell(n,    s) { s = $n; gsub(/[ \t`]/, "", s); return s }
        /^\| *mutant *\|/ { table = 1; getline; next }
        table && !/^\|/ { table = 0 }
        table { print cell(2) "\t" cell(3) "\t" cell(4) "\t" cell(5) }' docs/TESTING.md
}

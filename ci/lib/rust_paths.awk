# Reads Rust sources (file names as arguments) and prints what the checks need to know of them,
# comments and literals left out:
#   path <TAB> file:line <TAB> inline modules open here <TAB> a::path::as::written <TAB> test
#   word <TAB> file:line <TAB> next token <TAB> unsafe     (one line per `unsafe`)
# The last field is "test" inside `mod tests { }`. `use a::{b, c::*}` gives a::b and a::c::*.
# Good enough for style checks; not a parser.

function reset_file() {
    in_comment = in_string = in_raw = 0
    path = previous = held = ""
    pending = groups = depth = modules = skip = watch_unsafe = in_use = 0
}

function flush() {
    if (path != "" && (index(path, "::") || groups > 0))
        print "path\t" FILENAME ":" path_line "\t" modules "\t" path "\t" (in_tests[modules] ? "test" : "")
    path = ""; pending = 0
}

function open_brace() {
    if (in_use) { group[++groups] = path; path = ""; pending = 0; return }
    flush(); depth++
    if (mod_name) {
        module_depth[++modules] = depth; mod_name = 0
        in_tests[modules] = in_tests[modules - 1] || mod_called == "tests"
    }
}

function close_brace() {
    flush()
    if (groups > 0) { groups--; return }
    if (modules > 0 && module_depth[modules] == depth) modules--
    depth--
}

function start(t) {
    path = groups > 0 && group[groups] != "" ? group[groups] "::" t : t
    path_line = FNR
}

function token(t, is_word) {
    if (watch_unsafe) { print "word\t" unsafe_at "\t" t "\tunsafe"; watch_unsafe = 0 }
    if (skip) { skip = 0; previous = t; return }
    if (t == "::") { if (path == "") path_line = FNR; pending = 1 }
    else if (pending && (is_word || t == "*")) {
        path = path == "" ? t : path "::" t
        pending = 0
    }
    else if (t == "{") open_brace()
    else {
        flush()
        if (t == "}") close_brace()
        else if (t == ";") { in_use = groups = mod_name = 0 }
        else if (is_word) {
            if (t == "use") in_use = 1
            else if (t == "as" && in_use) skip = 1
            else if (t == "unsafe") { watch_unsafe = 1; unsafe_at = FILENAME ":" FNR }
            else {
                mod_name = previous == "mod"
                if (mod_name) mod_called = t
                start(t)
            }
        }
        else if (t == "*" && groups > 0) start(t)
    }
    previous = t
}

# Leaves out what is inside a comment or literal that began on an earlier line.
function inside(    at) {
    if (in_comment) {
        while (in_comment && match(rest, /\/\*|\*\//)) {
            in_comment += substr(rest, RSTART, 2) == "/*" ? 1 : -1
            rest = substr(rest, RSTART + 2)
        }
        if (in_comment) rest = ""
    } else if (in_raw) {
        at = index(rest, raw_end)
        if (at) { rest = substr(rest, at + length(raw_end)); in_raw = 0 } else rest = ""
    } else if (in_string) {
        if (match(rest, /^([^"\\]|\\.)*"/)) { rest = substr(rest, RLENGTH + 1); in_string = 0 }
        else rest = ""
    }
}

function eat(n) { taken = substr(rest, 1, n); rest = substr(rest, n + 1) }

FNR == 1 { reset_file() }

{
    rest = $0
    while (rest != "") {
        if (in_comment || in_raw || in_string) { inside(); continue }
        if (match(rest, /^[ \t\r]+/)) eat(RLENGTH)
        else if (rest ~ /^\/\//) rest = ""
        else if (rest ~ /^\/\*/) { eat(2); in_comment = 1 }
        else if (match(rest, /^(b|c)?r#*"/)) {
            eat(RLENGTH); raw_end = taken; sub(/^[bc]?r/, "", raw_end)
            raw_end = "\"" substr(raw_end, 1, length(raw_end) - 1); in_raw = 1
        }
        else if (match(rest, /^[bc]?"/)) { eat(RLENGTH); in_string = 1 }
        else if (match(rest, /^b?'\\.[^']*'/) || match(rest, /^b?'[^\\']'/)) eat(RLENGTH)
        else if (match(rest, /^'[A-Za-z_][A-Za-z0-9_]*/)) eat(RLENGTH)
        else if (match(rest, /^(r#)?[A-Za-z_][A-Za-z0-9_]*/)) { eat(RLENGTH); token(taken, 1) }
        else if (match(rest, /^[0-9][A-Za-z0-9_]*/)) { eat(RLENGTH); token(taken, 0) }
        else if (rest ~ /^::/) { eat(2); token("::", 0) }
        else { eat(1); token(taken, 0) }
    }
}

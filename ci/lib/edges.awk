# Judges the output of rust_paths.awk by ci/edges.table (variable `table`); prints what is wrong.
BEGIN {
    while ((getline line < table) > 0) {
        sub(/#.*/, "", line)
        n = split(line, f, " ")
        if (f[1] == "module") {
            name = f[3]; sub(/:$/, "", name)
            module[f[2], name] = 1; checked[f[2]] = 1
            allowed[f[2], name, name] = allowed[f[2], name, "planted"] = 1
            for (i = 4; i <= n; i++) allowed[f[2], name, f[i]] = 1
        }
        else if (f[1] == "pure") pure[f[2], f[3]] = 1
        else if (f[1] == "only") { only[++rules] = f[2]; homes(rules, 3) }
        else if (f[1] == "unsafe") homes("unsafe", 2)
    }
}

function homes(rule, from,    i) {
    for (i = from; i <= n; i++) home[rule] = home[rule] f[i] " "
}

function at_home(rule, file,    i, n, h) {
    n = split(home[rule], h, " ")
    for (i = 1; i <= n; i++) {
        if (file == h[i]) return 1
        if (h[i] ~ /\/$/ && index(file, h[i]) == 1) return 1
    }
    return 0
}

function say(what) { print $2 ": " what }

# Where in its crate this file's module is: sets crate, segments, segment[].
function locate(file,    inner) {
    crate = segments = 0
    if (!match(file, /^[^\/]+(\/[^\/]+)?\/src\//)) return 0
    crate = substr(file, 1, RLENGTH - 5)
    if (!(crate in checked)) return 0
    inner = substr(file, RLENGTH + 1)
    sub(/\.rs$/, "", inner); sub(/\/mod$/, "", inner)
    if (inner == "lib" || inner == "main" || inner ~ /^bin\//) return 0
    segments = split(inner, segment, "/")
    return 1
}

# The first segment, seen from the crate's root, of a path that stays in the crate; else "".
function top(path, inline,    n, p, k, up) {
    n = split(path, p, "::")
    if (p[1] == "crate") return n > 1 ? p[2] : ""
    for (k = 0; p[k + 1] == "super"; k++) { }
    if (k == 0) return ""
    up = k - inline
    if (up <= 0) return segment[1]
    if (up < segments) return segment[1]
    return k < n ? p[k + 1] : "*"
}

{ file = $2; sub(/:[0-9]+$/, "", file) }

$1 == "word" && !at_home("unsafe", file) { say("unsafe code outside its home (see unsafe in the table)") }

$1 == "path" {
    for (r = 1; r <= rules; r++)
        if ($4 ~ only[r] && !at_home(r, file)) say("names " $4 "; only " home[r] "may")
    if (!locate(file)) next
    me = segment[1]
    if (!((crate, me) in module)) {
        if (!told[crate, me]++) say("module " me " has no line in " table)
        next
    }
    test = $5 == "test" || file ~ /\/tests(\.rs$|\/)/
    if (!test && (crate, me) in pure && $4 ~ /^(std::(env|fs|io|net|os|process|thread)|rustix|memmap2|getrandom|tracing|crossbeam_channel)(::|$)/)
        say(me " is pure and may not name " $4)
    target = top($4, $3)
    if (target == "" || (crate, me, target) in allowed) next
    if ((crate, target) in module) say(me " may not import " target " (" $4 ")")
    else if (target ~ /^[a-z_0-9]+$/) say("module " target " has no line in " table " (" $4 ")")
    else say(me " imports " $4 " through the crate root; name its module")
}

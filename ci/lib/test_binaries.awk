# From cargo's JSON messages, the test binaries: crate, target, package folder, executable.
# Target is "lib", "bin:NAME", "bench:NAME" or the name of an integration test.
function text(key,    s) {
    if (!match($0, "\"" key "\":\"[^\"]*\"")) return ""
    s = substr($0, RSTART, RLENGTH)
    sub(/^"[^"]*":"/, "", s); sub(/"$/, "", s)
    return s
}
/"reason":"compiler-artifact"/ && /"test":true[,}]/ && /"executable":"/ {
    if (!match($0, /"profile":\{[^}]*"test":true/)) next
    crate = text("package_id")
    if (crate ~ /@/) { sub(/.*#/, "", crate); sub(/@.*/, "", crate) }
    else { sub(/#.*/, "", crate); sub(/.*\//, "", crate) }
    folder = text("manifest_path"); sub(/\/Cargo\.toml$/, "", folder)
    match($0, /"target":\{.*\},"profile"/); rest = substr($0, RSTART, RLENGTH)
    kind = rest; sub(/.*"kind":\["/, "", kind); sub(/".*/, "", kind)
    name = rest; sub(/.*"name":"/, "", name); sub(/".*/, "", name)
    target = kind == "test" ? name : kind ~ /lib/ ? "lib" : kind ":" name
    print crate "\t" target "\t" folder "\t" text("executable")
}

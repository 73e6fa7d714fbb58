#!/usr/bin/env bash
# What `cargo xtask` holds of the sources: words, cycles between modules, sizes of crates, the picture
# of the crates, the table of features, examples of public types. And whether each crate makes a package, as a registry would get it, and each test for an RDMA device runs.
source "$(dirname "$0")/lib.sh"
scratch_dir
failed=0 checks=0
# packages: makes one of each crate, from a copy without `publish = false`. Fails where a registry would refuse: no
# description, no licence, a dependency between crates without a version. Nothing is compiled or fetched.
packages() {
    local copy=$SCRATCH/copy log=$SCRATCH/package.log made
    mkdir "$copy"
    git ls-files -z --cached --others --exclude-standard | tar --create --null --ignore-failed-read --files-from - 2>/dev/null |
        tar --extract --directory "$copy"
    sed -i 's/^publish = false$/publish = true/' "$copy/Cargo.toml"
    if ! (cd "$copy" && cargo package --workspace --no-verify --allow-dirty --offline --exclude-lockfile \
        --target-dir "$SCRATCH/packages") >"$log" 2>&1 || grep -q '^warning: manifest has no' "$log"; then
        grep -A 8 -E '^(error|warning: manifest)' "$log" | head -n 20
        return 1
    fi
    made=$(find "$SCRATCH/packages/package" -maxdepth 1 -name '*.crate' | wc -l)
    say "packages: $made crates, $(du -sk --apparent-size "$SCRATCH/packages/package" | cut -f1) KiB"
    ((made > 0)) && tar --list --file "$SCRATCH/packages/package/tidewater-"[0-9]*.crate | grep '/README.md$' >/dev/null
}

# guest_tests: each test target with tests that need an RDMA device is in a group of ci/softroce/groups.toml. Fails where
# one is in none, or there are none.
guest_tests() {
    local file folder crate rest found=0 missing=0
    while read -r file; do
        folder=$(dirname "$file")
        until [[ -f $folder/Cargo.toml ]]; do folder=$(dirname "$folder"); done
        crate=$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/Cargo.toml" | head -n 1)
        rest=${file#"$folder"/}
        rest=${rest#tests/}
        rest=${rest/#src\/*/lib}
        rest=${rest%%/*}
        found=$((found + 1))
        grep -qE -- "test\.sh $crate ${rest%.rs}[ \"]" ci/softroce/groups.toml ||
            { say "$file: no group of ci/softroce/groups.toml runs $crate ${rest%.rs}" && missing=1; }
    done < <(git grep -l 'needs an RDMA device: ci/softroce.sh' -- '*.rs')
    say "guest tests: $found files"
    ((found > 0 && missing == 0))
}

for check in words modules lines 'crates --check' features examples; do
    read -ra arguments <<<"$check"
    xtask "${arguments[@]}" || failed=1
    checks=$((checks + 1))
done
packages || failed=1
guest_tests || failed=1
checks=$((checks + 2))
note "$checks checks"
exit "$failed"

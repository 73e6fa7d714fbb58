# shellcheck shell=bash
# Which packages of ci/packages.tsv are missing. Source it after ci/lib.sh.

# has_libclang: what bindgen loads.
has_libclang() { libclang >/dev/null; }

# has_mpi_h: Open MPI's compiler wrapper alone is not enough: Debian has it in openmpi-bin, without mpi.h.
has_mpi_h() {
    local folder
    command -v mpicc.openmpi >/dev/null || return 1
    for folder in $(mpicc.openmpi --showme:incdirs 2>/dev/null); do
        [[ ! -f $folder/mpi.h ]] || return 0
    done
    return 1
}

# has_venv: Debian's python3 comes without ensurepip.
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

# has CHECK: of a row.
has() {
    case $1 in
    @*) "has_${1#@}" ;;
    /*) [[ -e $1 ]] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# missing_packages NEED [STAGE]: "package<TAB>stage" for each package that lacks, of one stage or of all.
missing_packages() {
    local check packages need stage package
    while IFS=$'\t' read -r check packages need stage; do
        [[ $check != '#'* && $need == "$1" && ${2:-$stage} == "$stage" ]] || continue
        ! has "$check" || continue
        for package in $packages; do
            if [[ $package == *'|'* ]]; then
                if apt-cache show "${package%%|*}" >/dev/null 2>&1; then package=${package%%|*}; else package=${package##*|}; fi
            fi
            printf '%s\t%s\n' "$package" "$stage"
        done
    done <ci/packages.tsv | sort -u
}

# need_packages STAGE|"": what is required for one stage, or for all, is here, or is installed where CI_INSTALL=1 asks for
# it; else the stage fails with the list. What is optional is installed likewise, else it is left out.
need_packages() {
    local required optional both
    required=$(missing_packages required "${1:-}")
    optional=$(missing_packages optional "${1:-}")
    if [[ -n $required$optional ]] && may_install; then
        # On a machine that has never fetched apt's lists, alternatives are known only now.
        apt_update_once
        required=$(missing_packages required "${1:-}")
        optional=$(missing_packages optional "${1:-}")
        both=$(printf '%s\n%s\n' "$required" "$optional" | cut -f1 | xargs)
        # Together, as apt resolves them best; without the optional ones if they cannot be had.
        # shellcheck disable=SC2046,SC2086  # one word per package
        apt_install $both || [[ -z $required ]] || apt_install $(cut -f1 <<<"$required") || true
        required=$(missing_packages required "${1:-}")
        optional=$(missing_packages optional "${1:-}")
    fi
    [[ -z $optional ]] || note "left out for want of packages: $(awk -F '\t' '{ printf "%s%s (%s)", (NR > 1 ? ", " : ""), $1, $2 }' <<<"$optional")"
    if [[ -n $required ]]; then
        awk -F '\t' '{ print "error: missing package " $1 ", needed by stage " $2 }' <<<"$required" >&2
        die "$(wc -l <<<"$required") packages are missing; CI_INSTALL=1 installs them (Debian, as root), or type: apt-get install -y --no-install-recommends $(cut -f1 <<<"$required" | xargs)"
    fi
}

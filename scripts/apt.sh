# How scripts/install-system-packages uses apt: as root or through sudo, patiently, with backports where the
# distribution's own packages are too old. Sourced after common.sh by that script, whose variables it uses.
# shellcheck shell=bash
# shellcheck disable=SC2154  # they are set there

readonly APT_SOURCES=/etc/apt/sources.list.d
readonly LOCK_WAIT_SECONDS=300

# Without the lock of install-system-packages (9): a service that a package starts would keep it for ever.
as_root() {
    if ((EUID == 0)); then "$@" 9>&-; else sudo -- "$@" 9>&-; fi
}

require_root() {
    ((EUID == 0)) && return
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || sudo -v; } && return
    fail "installing these packages needs root, and sudo is missing or refuses" \
        "let an administrator run this once: $here/install-system-packages" \
        "or emulate the drives without QEMU: make run ENGINE=native"
}

# Runs apt-get without questions: configuration files that the user changed stay. It waits for other package
# managers before it installs.
run_apt() {
    as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -o DPkg::Lock::Timeout="$LOCK_WAIT_SECONDS" \
        -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" </dev/null
}

# Fetches package lists; apt does not wait for their lock itself. Arguments: options for apt-get.
update_lists() {
    local deadline=$((SECONDS + LOCK_WAIT_SECONDS)) answer
    until answer=$(run_apt update -qq "$@" 2>&1); do
        if [[ $answer != *"lists/lock"* ]] || ((SECONDS >= deadline)); then
            printf '%s\n' "$answer" >&2
            return 1
        fi
        sleep 1
    done
}

candidate_of() {
    apt-cache policy "$1" | awk '$1 == "Candidate:" { print $2 }'
}

# Splits `missing` into `regular` and `backported`; fails for what nothing offers.
choose_archives() {
    local package candidate
    regular=() backported=()
    for package in "${missing[@]}"; do
        candidate=$(candidate_of "$package")
        if is_enough "$package" "$candidate"; then
            regular+=("$package")
        elif [[ -n ${minimum[$package]:-} && $os_id == debian ]]; then
            backported+=("$package")
        else
            fail "$os_name offers $package in version ${candidate:-none}, csd-emu needs ${minimum[$package]:-any}" \
                "check this machine's apt sources and network; supported are Debian 12, 13 and Ubuntu 24.04"
        fi
    done
}

# Whether the machine's package lists hold the backports suite, by whatever entry.
has_backports() {
    # shellcheck disable=SC2016  # apt expands $(CODENAME); and grep -q would break the pipe
    apt-get indextargets --format '$(CODENAME)' "Created-By: Packages" |
        grep -x "$os_codename-backports" >/dev/null
}

# Prints `URI SUITE` of the archive that offers the distribution's own QEMU.
own_archive() {
    apt-cache madison qemu-system-arm | awk -F '|' -v codename="$os_codename" '
        { split($3, source, " "); split(source[2], suite, "/") }
        suite[1] == codename || suite[1] ~ /^(old)*stable$/ { print source[1], suite[1]; exit }'
}

add_backports() {
    local backports=$os_codename-backports uri suite entry kind=list file
    read -r uri suite < <(own_archive) || fail "no apt source offers $os_codename's own QEMU" \
        "add the source of $os_name (component main) to $APT_SOURCES and run this again"
    entry=$("$here/backports-entry" "$uri" "$suite" "$backports" /etc/apt/sources.list \
        "$APT_SOURCES"/*.list "$APT_SOURCES"/*.sources) ||
        fail "no apt source of this machine names $uri $suite in a way that can be turned into $backports" \
            "add $backports to $APT_SOURCES by hand and run this again"
    [[ $entry != Types:* ]] || kind=sources
    file=$APT_SOURCES/csd-emu-backports.$kind
    say "adding $backports, which carries newer QEMU and libvirt, as $file"
    printf '%s\n' "# Written by csd-emu (scripts/install-system-packages) for its QEMU and libvirt." \
        "# Other packages are not taken from here unless asked for. May be deleted with csd-emu." "$entry" |
        as_root install -m 0644 /dev/stdin "$file"
    if ! update_lists -o Dir::Etc::sourcelist="$file" -o Dir::Etc::sourceparts=- \
        -o APT::Get::List-Cleanup=0; then
        as_root rm -f "$file"
        fail "$backports could not be read from $uri; $file was removed again" \
            "check the network, or name an archive that carries $backports in $APT_SOURCES"
    fi
}

# Installs packages without what they merely recommend; removes none. Arguments: options and packages.
apt_install() {
    run_apt install -q -y --no-install-recommends --no-remove "$@" ||
        fail "apt-get could not install the packages; its own words are above" \
            "repair what it names (sudo apt-get -f install) and run this again"
}

# Installs packages from backports. Only QEMU, libvirt and the firmware that QEMU needs with them come from there:
# apt's own --target-release would also move their other dependencies, systemd among them. Arguments: packages.
apt_install_backported() {
    preferences=$(mktemp)
    trap 'rm -f "$preferences"' EXIT
    [[ ! -r /etc/apt/preferences ]] || cat /etc/apt/preferences - >"$preferences" <<<""
    printf '%s\n' "Package: src:qemu src:libvirt src:seabios" "Pin: release n=$os_codename-backports" \
        "Pin-Priority: 990" >>"$preferences"
    chmod 0644 "$preferences"
    apt_install -o Dir::Etc::Preferences="$preferences" "$@"
}

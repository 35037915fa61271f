# Shared by the scripts beside it: how they speak and fail, and which Python they use. Sourced, never run.
# shellcheck shell=bash

readonly UNFIT_EXIT_CODE=2  # as EnvironmentUnfit in firmware_agent/common/errors.py

# Says one line of what is being done. Quiet runs call it never.
say() {
    printf '%s: %s\n' "${0##*/}" "$*"
}

# Ends the script with the exit code that csd-emu uses for an unfit environment.
# Arguments: what is wrong and why, then the remedy (each may hold several lines).
fail() {
    printf '%s: error: %s\n' "${0##*/}" "$1" >&2
    [[ $# -lt 2 ]] || printf '  remedy: %s\n' "${@:2}" >&2
    exit "$UNFIT_EXIT_CODE"
}

# Prints a list as text: a, b, c.
join() {
    local text
    text=$(printf ', %s' "$@")
    printf '%s' "${text:2}"
}

# Prints the interpreter behind the command in $1 (a version manager's shim is slow); fails if it is too old.
interpreter_of() {
    "$1" -c 'import sys; sys.exit(1) if sys.version_info < (3, 11) else print(sys.executable)' 2>/dev/null
}

# Prints the path of the first Python >= 3.11: $CSD_PYTHON and no other if that is set, else PATH's, else the
# distribution's. Fails if there is none.
find_python() {
    local candidates=(python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3) candidate
    [[ -z ${CSD_PYTHON:-} ]] || candidates=("$CSD_PYTHON")
    for candidate in "${candidates[@]}"; do
        interpreter_of "$candidate" && return
    done
    return 1
}

# Whether the Python in $1 can make virtual environments (Debian ships that apart).
has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

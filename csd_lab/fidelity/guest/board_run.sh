# Runs a command on one core of a board again and again, and writes down clock and temperature meanwhile. Called as
#     sh board_run.sh CORE REPETITIONS SECONDS COMMAND...
# in a folder of its own. SECONDS end a repetition that hangs, and a connection that breaks ends the command. Lines:
#     sample WHEN CLOCK_KHZ MOST_KHZ FIRMWARE TEMPERATURE...   (`-`: not known; WHEN is before, during or after)
#     out TEXT, err TEXT     what the command wrote
#     ended CODE             of one repetition
# POSIX sh with dash or busybox. CSD_SYSTEM_ROOT: see board_facts.sh.
LC_ALL=C
export LC_ALL
core=$1 repetitions=$2 limit=$3
shift 3
root=${CSD_SYSTEM_ROOT:-}
clock=$root/sys/devices/system/cpu/cpu$core/cpufreq
firmware=$root/sys/devices/platform/soc/soc:firmware/get_throttled
program='' sampler=''

# The first word of a file, into `value`, without a process.
value_of() {
    value=''
    { read -r value rest <"$1"; } 2>/dev/null
    : "${value:=-}"
}

sample() {
    line="sample $1"
    for file in "$clock/scaling_cur_freq" "$clock/cpuinfo_max_freq" "$firmware"; do
        value_of "$file"
        line="$line $value"
    done
    zones=0
    for file in "$root"/sys/class/thermal/thermal_zone*/temp; do
        [ -r "$file" ] && [ "$zones" -lt 16 ] || continue
        value_of "$file"
        line="$line $value" zones=$((zones + 1))
    done
    printf '%s\n' "$line"
}

stop() {
    trap '' TERM HUP INT
    # shellcheck disable=SC2086
    [ -z "$program$sampler" ] || kill -9 $program $sampler 2>/dev/null
    exit 143
}

watch() {
    trap - TERM HUP INT
    trap '' PIPE
    second=0
    while [ "$second" -lt "$limit" ]; do
        sleep 1 >/dev/null 2>&1 </dev/null
        sample during || break
        second=$((second + 1))
    done
    kill -9 "$program"
}

trap stop TERM HUP INT
trap 'rm -f pid' EXIT
echo $$ >pid
number=0
while [ "$number" -lt "$repetitions" ]; do
    sample before
    taskset -c "$core" "$@" </dev/null >out 2>err &
    program=$!
    watch 2>/dev/null &
    sampler=$!
    wait "$program"
    code=$?
    sample after
    program=''
    # A gentler signal may be lost if it comes before the child has reset its traps.
    kill -9 "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    sampler=''
    # What was written may end without the end of a line.
    head -c 65536 out | sed 's/^/out /'
    echo
    tail -c 2000 err | sed 's/^/err /'
    printf '\nended %s\n' "$code"
    [ "$code" = 0 ] || break
    number=$((number + 1))
done

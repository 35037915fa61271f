# What a board is: facts, one `key=value` a line. POSIX sh with dash or busybox; it changes nothing. A fact that cannot be
# found is left out. CSD_SYSTEM_ROOT, of tests alone, is in front of the paths of /proc and /sys.
LC_ALL=C
export LC_ALL
root=${CSD_SYSTEM_ROOT:-}

say() {
    [ -z "$2" ] || printf '%s=%s\n' "$1" "$2"
}

say system "$(uname -s)"
say machine "$(uname -m)"
say kernel "$(uname -r)"
for file in "$root/proc/device-tree/model" "$root/sys/firmware/devicetree/base/model"; do
    [ ! -r "$file" ] || { say model "$(head -c 200 "$file" | tr -cd '[:print:]')"; break; }
done
say memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' "$root/proc/meminfo" | head -n 1)"
# A core's lines: its number, then who made it and which one it is.
sed -n -e 's/^processor[[:space:]]*: */processor=/p' -e 's/^CPU implementer[[:space:]]*: */implementer=/p' \
    -e 's/^CPU part[[:space:]]*: */part=/p' "$root/proc/cpuinfo" | head -n 12288
for tool in taskset tar head tail tr sed mktemp; do
    command -v "$tool" >/dev/null 2>&1 && say tool "$tool"
done
cd / || exit 1
say python "$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])' 2>/dev/null)"
# The last line of what went wrong, where the agent's steps cannot run.
say torch "$(python3 -c 'import grpc, msgspec, numpy, xxhash, torch; print(torch.__version__)' 2>&1 | tail -n 1 | head -c 200)"
say end yes

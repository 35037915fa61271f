# What a drive is: facts, one `key=value` a line. Called as `sh -s -- FOLDER DATA`, with this on standard input.
# POSIX sh with dash or busybox, no Python; it changes nothing. A fact that cannot be found is left out.
LC_ALL=C
PATH=$PATH:/usr/local/bin:/usr/sbin:/sbin:/usr/bin:/bin
export LC_ALL PATH
folder=$1
data=$2

say() {
    [ -z "$2" ] || printf '%s=%s\n' "$1" "$2"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

first() {
    [ ! -r "$1" ] || head -n 1 "$1" 2>/dev/null
}

# The nearest folder above $1 that is there.
above() {
    place=$1
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    printf '%s' "$place"
}

# --- the machine
say system "$(uname -s)"
say machine "$(uname -m)"
say kernel "$(uname -r)"
say hostname "$(uname -n)"
say os "$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)"
say date "$(date +%s)"
say boot_id "$(first /proc/sys/kernel/random/boot_id)"
say cores "$(grep -c '^processor' /proc/cpuinfo)"
say clock_khz "$(first /sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq)"
say cpu_flags "$(sed -n -e 's/^Features[[:space:]]*: *//p' -e 's/^flags[[:space:]]*: *//p' /proc/cpuinfo | head -n 1)"
say cpu_part "$(sed -n 's/^CPU part[[:space:]]*: *//p' /proc/cpuinfo | head -n 1)"
say memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
free=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
[ -n "$free" ] || free=$(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)
say memory_free_kib "$free"

# --- disks: free KiB, and options of the mount
disk() {
    line=$(df -Pk "$2" 2>/dev/null | sed -n '2p')
    # shellcheck disable=SC2086
    set -- "$1" $line
    say "$1_free_kib" "$5"
    shift 6
    mount=$*
    say "$key"_mount "$mount"
    say "$key"_options "$(awk -v point="$mount" '$2 == point { options = $4 } END { print options }' /proc/mounts)"
}
key=folder
disk folder "$(above "$folder")"
if [ -n "$data" ]; then
    if [ -e "$data" ]; then say data there; else say data missing; fi
    key=data
    disk data "$(above "$data")"
fi
for device in /sys/class/nvme/nvme*; do
    [ -d "$device" ] || continue
    say nvme "${device##*/} $(first "$device/model")"
done
for sensor in /sys/class/hwmon/hwmon*/power*_input /sys/class/hwmon/hwmon*/power*_average; do
    [ -r "$sensor" ] || continue
    say power_sensor "$sensor $(first "${sensor%/*}/name")"
done

# --- Python and the C library
for python in $(for place in /usr/bin /usr/local/bin /opt/bin; do ls "$place"/python3 "$place"/python3.[0-9] \
    "$place"/python3.[0-9][0-9]; done 2>/dev/null); do
    say python "$python $("$python" -I -B -c 'import platform, struct
print(platform.python_version(), 8 * struct.calcsize("P"))' 2>/dev/null)"
done
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
if [ -z "$libc" ]; then
    for file in /lib/ld-musl-*; do
        [ -e "$file" ] || continue
        libc="musl $("$file" 2>&1 | sed -n 's/^Version //p')"
    done
fi
if [ -z "$libc" ]; then
    for file in /lib/libc.so.6 /lib64/libc.so.6 /lib/*/libc.so.6 /usr/lib/*/libc.so.6; do
        [ -r "$file" ] || continue
        libc="glibc $(tr -c '[:print:]' '\n' <"$file" | sed -n 's/^GNU C Library.* version \([0-9.]*[0-9]\).*/\1/p' |
            head -n 1)"
        break
    done
fi
say libc "$libc"

# --- who starts processes, who limits them, and what may be done
if [ -d /run/systemd/system ]; then
    say init "systemd $(systemctl --version 2>/dev/null | sed -n 's/^systemd \([0-9]*\).*/\1/p')"
elif [ -d /etc/init.d ]; then
    say init initd
else
    say init none
fi
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then say cgroup 2; elif [ -d /sys/fs/cgroup/cpu ]; then say cgroup 1; fi
say uid "$(id -u)"
say user "$(id -un)"
if [ "$(id -u)" = 0 ]; then
    say root yes
elif has sudo && sudo -n true 2>/dev/null; then
    say root sudo
else
    say root no
fi
for tool in tar gzip sha256sum dd awk chroot setsid nice ionice useradd adduser nvme; do
    has "$tool" && say tool "$tool"
done
say end yes

# What .ci/run and .ci/full share: steps with a budget of minutes each, which say how long they took and whether they passed.
# Sourced, not run.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0
passed=0 failed=0 ran=()
steps_log="$(mktemp -d)"
trap 'rm -rf "$steps_log"' EXIT

# step NAME MINUTES COMMAND…: runs it; its output is shown as it comes.
step() {
    local name="$1" minutes="$2" begin=$SECONDS code=0
    shift 2
    echo "── $name (at most $minutes min): $*"
    timeout --kill-after=20s "${minutes}m" "$@" </dev/null || code=$?
    local took=$((SECONDS - begin))
    if [ "$code" = 0 ]; then
        passed=$((passed + 1))
        ran+=("$name ${took}s")
        echo "── $name: passed in ${took} s"
    else
        failed=$((failed + 1))
        ran+=("$name FAILED ${took}s")
        [ "$code" = 124 ] && echo "── $name: not done within $minutes min"
        echo "── $name: FAILED (exit code $code) after ${took} s"
    fi
    return 0
}

# What a machine needs beside Rust. Mosquitto and Python's client are others' implementations to test against, strace makes syncs
# slow or broken.
install_tools() {
    local missing=()
    for tool in mosquitto:mosquitto mosquitto_pub:mosquitto-clients strace:strace python3:python3; do
        PATH="$PATH:/usr/sbin" command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
    done
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    if [ "${#missing[@]}" -gt 0 ]; then
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" || return 1
    fi
    python3 -c 'import paho.mqtt.client as m; m.CallbackAPIVersion' 2>/dev/null ||
        python3 -m pip install -q paho-mqtt==2.2.0 || python3 -m pip install -q --break-system-packages paho-mqtt==2.2.0 || return 1
    # A Mosquitto that the package may have started is not ours.
    if command -v systemctl >/dev/null; then systemctl stop mosquitto >/dev/null 2>&1 || true; fi
}

# One crypto library, and C only in it.
only_ring() {
    if cargo tree -e normal,build -i aws-lc-rs >/dev/null 2>&1; then
        echo "aws-lc-rs is in the dependencies: ring is the only provider"
        return 1
    fi
    local users
    users="$(cargo tree -e normal,build -i cc --depth 1 --prefix none --format '{p}' 2>/dev/null | awk 'NR > 1 { print $1 }' | sort -u)"
    if [ -n "$users" ] && [ "$users" != ring ]; then
        echo "expected that only ring builds C, found: $users"
        return 1
    fi
}

binary_is_small() {
    local bytes
    bytes="$(stat -c %s target/release/forebay)"
    echo "stripped binary: $bytes bytes ($((bytes / 1024)) KiB)"
    [ "$bytes" -le $((10 * 1024 * 1024)) ]
}

demo() {
    local times="$1" number line
    for number in $(seq "$times"); do
        line="$(target/release/forebay demo --json)" || { echo "demo $number failed: $line"; return 1; }
        echo "demo $number of $times: $line"
    done
}

# The last line is read by machines.
close() {
    local total=$((passed + failed)) IFS=','
    echo
    echo "$total steps in $((SECONDS / 60)) min $((SECONDS % 60)) s: ${ran[*]}"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}

# Functions as commands of `timeout`, which starts a program.
export -f install_tools only_ring binary_is_small demo

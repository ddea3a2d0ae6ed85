# What .ci/run and .ci/full share: steps with a budget of minutes, counted and timed.
passed=0
failed=0
ran=()
started=$SECONDS

# step NAME MINUTES COMMAND...: runs it within its budget, prints what it took, counts it.
step() {
    local name=$1 minutes=$2 from=$SECONDS status=0
    shift 2
    echo "── $name (at most $minutes min)"
    timeout --kill-after=20s "${minutes}m" "$@" || status=$?
    local took=$((SECONDS - from))
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        ran+=("$name ${took}s")
        echo "── $name: passed in ${took} s"
    else
        failed=$((failed + 1))
        ran+=("$name FAILED ${took}s")
        echo "── $name: FAILED with status $status after ${took} s"
    fi
}

# The counterparts of the suites: Debian's Mosquitto and its clients, Python's paho-mqtt; strace makes syncs slow or broken. Nothing
# is done where they are there.
install_counterparts() {
    if ! command -v strace >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq strace >/dev/null
    fi
    if ! command -v mosquitto_pub >/dev/null || ! { command -v mosquitto || [ -x /usr/sbin/mosquitto ]; } >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq && apt-get install -y -qq mosquitto mosquitto-clients >/dev/null
        # The package may start its own broker, which nobody asked for.
        systemctl stop mosquitto 2>/dev/null || true
    fi
    python3 -c 'import paho.mqtt' 2>/dev/null || pip install --quiet --root-user-action=ignore paho-mqtt==2.2.0
    rustup component add clippy rustfmt >/dev/null 2>&1 || true
}

# ring is the only crypto provider and the only C.
dependencies_are_ours() {
    if cargo tree --quiet --locked -e normal,build -i aws-lc-rs >/dev/null 2>&1; then
        echo "aws-lc-rs is in the tree" >&2
        return 1
    fi
    local users
    users=$(cargo tree --quiet --locked -e normal,build -i cc --depth 1 --prefix none | tail -n +2 | awk '{print $1}' | sort -u)
    [ "$users" = "ring" ] || { echo "C is compiled for: $users" >&2; return 1; }
}

# At most 10 MB stripped.
binary_is_small() {
    local bytes
    bytes=$(stat -c %s "$1")
    echo "the stripped binary has $bytes bytes"
    [ "$bytes" -le 10000000 ]
}

# The demo judges itself; the line says what it found.
demo() {
    "$1" demo --json
}

demos() {
    local n
    for n in $(seq "$2"); do
        demo "$1" || return
    done
}

finish() {
    echo
    echo "ran in $(((SECONDS - started) / 60)) min: $(IFS=';'; echo "${ran[*]}")"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

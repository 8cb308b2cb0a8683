#!/bin/bash
# Simulated machines on one Linux host: each has its own network, processes, /root (a layer over this one's), /tmp and
# /dev/shm, and an sshd that accepts the key $STATE/key. Everything else, so also $STATE/shared, is common to all, like a
# network file system.
#
#   hosts.sh up N STATE      start machines 1 to N at 10.77.0.11, 10.77.0.12, …
#   hosts.sh kill I STATE    machine I loses its power
#   hosts.sh down STATE      end them all
#
# Needs root, iproute2, openssh-server and rsync. STATE must not lie below /root or /tmp, which every machine has for
# itself. Each machine is a process namespace of its own because `ray stop`, which the launcher runs on every machine,
# ends all Ray processes that it can see.
set -euo pipefail

BRIDGE=icrl-net
ADDRESS=10.77.0

start_host() {
    local number=$1 state=$2
    local name=icrl-$number folder=$state/host-$number
    mkdir -p "$folder/home" "$folder/run"
    ip netns add "$name"
    ip link add "$name" type veth peer name eth0 netns "$name"
    ip link set "$name" master $BRIDGE up
    ip -n "$name" address add "$ADDRESS.$((10 + number))/24" dev eth0
    ip -n "$name" link set lo up
    ip -n "$name" link set eth0 up
    # Without a default route Ray's head takes 127.0.0.1 for its address.
    ip -n "$name" route add default via $ADDRESS.1
    ip netns exec "$name" unshare --pid --fork --kill-child --mount --mount-proc --uts bash -c "
        hostname $name
        mount -t tmpfs tmpfs $folder/home
        mkdir -p $folder/home/{upper/.ssh,work}
        cp $state/key.pub $folder/home/upper/.ssh/authorized_keys
        touch $folder/home/upper/.bashrc
        chmod -R go-rwx $folder/home/upper
        mount -t overlay overlay -o lowerdir=/root,upperdir=$folder/home/upper,workdir=$folder/home/work /root
        mount --bind $folder/run /run
        mount -t tmpfs tmpfs /tmp
        mount -t tmpfs tmpfs /dev/shm
        mkdir /run/sshd
        exec /usr/sbin/sshd -D -f $state/sshd_config
    " &> "$folder/log" &
    echo $! > "$folder/pid"
}

up() {
    local count=$1 state=$2
    mkdir -p "$state/shared"
    ssh-keygen -q -t ed25519 -N '' -f "$state/key"
    ssh-keygen -q -t ed25519 -N '' -f "$state/host_key"
    printf '%s\n' "HostKey $state/host_key" 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' \
        'UsePAM no' 'MaxSessions 100' 'MaxStartups 100' > "$state/sshd_config"
    ip link add $BRIDGE type bridge
    ip address add $ADDRESS.1/24 dev $BRIDGE
    ip link set $BRIDGE up
    for number in $(seq "$count"); do start_host "$number" "$state"; done
    for number in $(seq "$count"); do
        until ssh -q -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i "$state/key" \
            "root@$ADDRESS.$((10 + number))" true; do sleep 0.2; done
    done
}

kill_host() {
    local number=$1 state=$2
    kill -KILL "$(cat "$state/host-$number/pid")" 2> /dev/null || true
    ip netns delete "icrl-$number" 2> /dev/null || true
}

down() {
    local state=$1
    for folder in "$state"/host-*; do kill_host "${folder##*-}" "$state"; done
    ip link delete $BRIDGE
}

case $1 in
    up) up "$2" "$(realpath -m "$3")" ;;
    kill) kill_host "$2" "$(realpath -m "$3")" ;;
    down) down "$(realpath -m "$2")" ;;
    *) sed -n '2,12s/^# \?//p' "$0"; exit 2 ;;
esac

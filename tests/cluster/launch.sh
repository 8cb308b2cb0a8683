#!/bin/bash
# Ray's launcher for real, on simulated machines: up, submit, job submit, down. The results must be those of a run without
# a cluster.
#
#   launch.sh EXPECTED [OPTION…]     EXPECTED: run folder of `icrl run OPTION…` on this machine
#
# The machines use this checkout's .venv instead of downloading everything again; the project is synchronised as always.
set -euo pipefail
cd "$(dirname "$0")/../.."

EXPECTED=$(realpath "$1") STATE=/var/tmp/icrl-hosts VENV=$PWD/.venv
shift
PATH=$VENV/bin:$PATH
export RAY_UP_enable_autoscaler_v2=0 RAY_USAGE_STATS_ENABLED=0
trap 'tests/cluster/hosts.sh down $STATE' EXIT

# The launcher itself gets a process namespace too: it may stop Ray processes that it can see.
alone() { unshare --pid --fork --kill-child --mount-proc "$@"; }
step() { echo "== $* ($SECONDS s)"; }

rm -rf "$STATE" /tmp/ray/cluster-icrl-simulated.*
ray get-auth-token --generate > /dev/null
tests/cluster/hosts.sh up 3 $STATE
python - "$STATE" "$VENV" > $STATE/cluster.yaml << 'PYTHON'
import sys, yaml
state, venv = sys.argv[1:]
settings = yaml.safe_load(open("docs/cluster.local.yaml"))
settings["cluster_name"] = "icrl-simulated"
settings["provider"] |= {"head_ip": "10.77.0.11", "worker_ips": ["10.77.0.12", "10.77.0.13"]}
settings["auth"] = {"ssh_user": "root", "ssh_private_key": f"{state}/key"}
settings["setup_commands"] = [
    f"ln -sfn {venv} ~/icrl-env",
    "grep -q icrl-env ~/.bashrc || echo 'export PATH=~/icrl-env/bin:$PATH PYTHONPATH=~/icrl-project RAY_ADDRESS=auto RAY_AUTH_MODE=token' >> ~/.bashrc",
]
print(yaml.safe_dump(settings))
PYTHON

step ray up
alone ray up -y $STATE/cluster.yaml
step wait for both workers
alone timeout 300 ray exec $STATE/cluster.yaml \
    "until python -c 'import ray; ray.init(log_to_driver=False); exit(len(ray.nodes()) < 3)' 2> /dev/null; do sleep 2; done"

step ray submit
alone ray submit $STATE/cluster.yaml distributed/cli.py -- run "$@" --run-dir $STATE/shared/submitted
python tests/cluster/same_results.py "$EXPECTED" $STATE/shared/submitted

step ray submit of something wrong must fail
if alone ray submit $STATE/cluster.yaml distributed/cli.py -- run --config nonsense; then exit 1; fi

step ray job submit
alone ray exec $STATE/cluster.yaml "cd ~/icrl-project && RAY_ADDRESS=http://127.0.0.1:8265 \
    ray job submit --working-dir . -- icrl run $* --run-dir $STATE/shared/job"
python tests/cluster/same_results.py "$EXPECTED" $STATE/shared/job

step ray down
alone ray down -y $STATE/cluster.yaml
step done

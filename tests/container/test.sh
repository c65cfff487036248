#!/usr/bin/env bash
# `make test-container`: the image of the Dockerfile, run by runc as run.py says, answers the requests of tests/core/answers.
# Needs root, and Debian's buildah, debootstrap, gcc, iproute2, libc6-dev and runc. What it builds stays in $K, for
# `make test-kubernetes`, too.
set -euo pipefail
export K=${K:-${XDG_CACHE_HOME:-$HOME/.cache}/ensemble-kubernetes}
cd "$(dirname "$0")/../.."
[ -z "${BUILD-1}" ] || tests/kubernetes/images.sh
buildah() { command buildah --root "$K/storage" --runroot "$K/storage.run" --storage-driver overlay "$@"; }
folder=$(mktemp -d)
container=$(buildah from docker.io/library/ensemble:0.1.0)
network=ensemble-container-$$
trap 'ip netns delete $network; buildah umount "$container" > /dev/null; buildah rm "$container" > /dev/null; rm -rf "$folder"' EXIT
ln -s "$(buildah mount "$container")" "$folder/root"
ip netns add "$network"
ip -n "$network" link set lo up
cat > "$folder/ensemble" <<EOF2
#!/bin/sh
PYTHONPATH=$PWD exec "$(command -v python)" -m tests.container.run "$folder/root" ensemble "\$@"
EOF2
chmod +x "$folder/ensemble"
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$folder/token")
export RAY_AUTH_TOKEN_PATH="$folder/token"
# A driver outside has another patch version of Python.
export RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor
# Not `ip netns exec`, which hides the control groups.
inside=(nsenter "--net=/run/netns/$network")

# The image's own command, as `docker run --read-only --tmpfs /tmp` starts it: no folder but /tmp can be written to.
"${inside[@]}" python -m tests.container.run "$folder/root" ensemble serve --without-keys \
  /opt/ensemble/share/ensemble-serving/configs/container.yaml &
server=$!
"${inside[@]}" curl --silent --fail --output /dev/null --retry 240 --retry-delay 1 --retry-all-errors 127.0.0.1:8000/v2/health/ready
"${inside[@]}" curl --silent --fail --header 'Content-Type: image/jpeg' --data-binary @tests/cat.jpg 127.0.0.1:8000/classify |
  grep --quiet '"label":"cat"' || { echo "the image's own command does not answer" >&2; exit 1; }
# As `docker stop` does.
kill -TERM "$server"
wait "$server"

ENSEMBLE_TESTED="$folder/python" "${inside[@]}" python -m pytest -p no:cacheprovider tests/core/answers "$@"

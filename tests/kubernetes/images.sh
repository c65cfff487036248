#!/bin/bash
# Builds the project's image by its Dockerfile, without a hub: on a base of Debian's packages, which also has the Redis.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$K/images" "$K/pause"
buildah() { command buildah --root "$K/storage" --runroot "$K/storage.run" --storage-driver overlay "$@"; }

from_folder() { # NAME FOLDER [ENTRYPOINT]
  local container; container=$(buildah from scratch)
  buildah add --quiet "$container" "$2" /
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${3:+--entrypoint "[\"$3\"]"} "$container"
  buildah commit --quiet --rm "$container" "$1"
}

packed() { # NAME FILE
  rm -f "$K/images/$2.tar"
  buildah push --quiet "$1" "docker-archive:$K/images/$2.tar:$1"
}

# The container that holds a pod's namespaces.
cat > "$K/pause.c" <<'EOF'
#include <signal.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
EOF
[ -x "$K/pause/pause" ] || gcc -static -Os -o "$K/pause/pause" "$K/pause.c"

if [ ! -f "$K/images/base.tar" ]; then
  [ -x "$K/base/usr/bin/redis-server" ] ||
    debootstrap --variant=minbase --include=python3,python3-venv,redis-server bookworm "$K/base" > "$K/base.log"
  ln -sf python3 "$K/base/usr/bin/python"
  from_folder localhost/pause:1 "$K/pause" /pause
  packed localhost/pause:1 pause
  from_folder localhost/base:1 "$K/base"
  packed localhost/base:1 base
fi

# The Prometheus operator runs this image.
if [ ! -f "$K/images/prometheus.tar" ] && [ -x "$K/bin/prometheus" ]; then
  mkdir -p "$K/prometheus/bin"
  ln -f "$K"/bin/prometheus{,-config-reloader} "$K/prometheus/bin"
  from_folder localhost/prometheus:1 "$K/prometheus" /bin/prometheus
  packed localhost/prometheus:1 prometheus
fi

# The index may need this machine's certificates.
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
buildah build --quiet --format docker --isolation chroot --network host --layers --build-arg BASE=localhost/base:1 \
  --volume "$certificates:$certificates:ro" --env PIP_CERT="$certificates" --tag docker.io/library/ensemble:0.1.0 .
# Another version, with models of its own, one of which is another version, too: the layer that docs/kubernetes.md shows.
rm -rf "$K/layer/models"
mkdir -p "$K/layer/models/resnet"
cp -r models/resnet/1 "$K/layer/models/resnet"
cp -r models/densenet "$K/layer/models"
buildah build --quiet --format docker --isolation chroot --layers --build-arg IMAGE=docker.io/library/ensemble:0.1.0 \
  --file configs/kubernetes/models.Dockerfile --tag docker.io/library/ensemble:0.1.1 "$K/layer"
packed docker.io/library/ensemble:0.1.0 first
packed docker.io/library/ensemble:0.1.1 next

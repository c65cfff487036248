#!/bin/bash
# Starts and ends the node that build.sh built, in a network and a mount namespace of its own.
#
#     node.sh up | node.sh down          then $K/inside COMMAND... runs there; so does $K/kubectl
set -eu
NAME=ensemble-kubernetes PKI=$K/pki ADMIN=$K/pki/admin.conf
SOCKET=$K/containerd/socket

configure() {
  mkdir -p "$K/run" "$K/log" "$K/containerd"
  echo "nameserver 10.77.0.1" > "$K/resolv.conf"
  cat > "$K/inside" <<EOF
#!/bin/bash
exec nsenter --target "\$(cat $K/run/anchor)" --net --mount -- "\$@"
EOF
  cat > "$K/kubectl" <<EOF
#!/bin/bash
exec $K/inside $K/bin/kubectl --kubeconfig $ADMIN "\$@"
EOF
  chmod +x "$K/inside" "$K/kubectl"
  cat > "$K/containerd.toml" <<EOF
version = 2
root = "$K/containerd/root"
state = "$K/containerd/state"
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$K/cni/net.d"
EOF
  cat > "$K/cni/net.d/bridge.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "$K/cni/addresses",
  "ranges": [[{"subnet": "10.78.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
  cat > "$K/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.77.0.1
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $PKI/ca.crt}, webhook: {enabled: true}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
cgroupDriver: cgroupfs
failCgroupV1: false
clusterDNS: [10.77.0.1]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://$SOCKET
failSwapOn: false
oomScoreAdj: 0
resolvConf: $K/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi, imagefs.available: 1Gi}
imageGCHighThresholdPercent: 100
EOF
  cat > "$K/Corefile" <<EOF
.:53 {
  bind 10.77.0.1
  errors
  kubernetes cluster.local {
    kubeconfig $ADMIN
  }
}
EOF
}

begin() { # NAME COMMAND...
  local name=$1; shift
  nohup "$K/inside" "$@" > "$K/log/$name.log" 2>&1 &
  echo "$! $name" >> "$K/run/processes"
}

until_true() { for _ in $(seq 240); do "$@" > /dev/null 2>&1 && return; sleep 0.5; done; echo "never: $*" >&2; exit 1; }
ready() { "$K/kubectl" get node n1 | grep -q ' Ready' && "$K/kubectl" get serviceaccount default; }
containers() { "$K/inside" ctr --address "$SOCKET" --namespace k8s.io "$@"; }

up() {
  configure
  ip netns add $NAME
  local inside="ip netns exec $NAME"
  $inside ip link set lo up
  $inside ip link add node0 type bridge
  $inside ip address add 10.77.0.1/24 dev node0
  $inside ip link set node0 up
  $inside ip route add 10.96.0.0/16 dev node0
  nohup nsenter --net=/run/netns/$NAME unshare --mount bash -c 'mount --make-rshared /; exec sleep infinity' \
    > /dev/null 2>&1 &
  echo $! > "$K/run/anchor"
  sleep 0.5
  # The kubelet sets these for the whole machine: it gets copies.
  for each in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    mkdir -p "$K/sysctl/${each%/*}"
    cat /proc/sys/$each > "$K/sysctl/$each"
    "$K/inside" mount --bind "$K/sysctl/$each" /proc/sys/$each
  done
  begin containerd containerd --config "$K/containerd.toml"
  begin etcd "$K/bin/etcd" --data-dir "$K/run/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  begin apiserver "$K/bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=10.77.0.1 \
    --advertise-address=10.77.0.1 --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC \
    --allow-privileged=true --client-ca-file="$PKI/ca.crt" \
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --service-account-key-file="$PKI/accounts.pub" --service-account-signing-key-file="$PKI/accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc --kubelet-certificate-authority="$PKI/ca.crt" \
    --kubelet-client-certificate="$PKI/admin.crt" --kubelet-client-key="$PKI/admin.key" \
    --kubelet-preferred-address-types=InternalIP
  until_true "$K/kubectl" get --raw /readyz
  begin controllers "$K/bin/kube-controller-manager" --kubeconfig="$ADMIN" --leader-elect=false \
    --authentication-kubeconfig="$ADMIN" --authorization-kubeconfig="$ADMIN" --bind-address=127.0.0.1 \
    --service-account-private-key-file="$PKI/accounts.key" --root-ca-file="$PKI/ca.crt" \
    --use-service-account-credentials
  begin scheduler "$K/bin/kube-scheduler" --kubeconfig="$ADMIN" --bind-address=127.0.0.1 --leader-elect=false
  for each in "$K"/images/*.tar; do containers images import "$each" > /dev/null; done
  begin kubelet "$K/bin/kubelet" --config="$K/kubelet.yaml" --kubeconfig="$PKI/kubelet.conf" \
    --root-dir="$K/kubelet" --hostname-override=n1 --node-ip=10.77.0.1
  begin dns "$K/bin/coredns" -conf "$K/Corefile"
  begin proxy "$K/bin/kube-proxy" --kubeconfig="$ADMIN" --hostname-override=n1 --proxy-mode=iptables \
    --cluster-cidr=10.78.0.0/24 --conntrack-max-per-core=0 --conntrack-min=0 --conntrack-tcp-timeout-established=0 \
    --conntrack-tcp-timeout-close-wait=0
  "$K/kubectl" create --filename "$K/src/kuberay/config/crd/bases/" > /dev/null
  begin operator env KUBECONFIG="$ADMIN" POD_NAMESPACE=default "$K/bin/kuberay-operator" \
    --enable-leader-election=false --use-kubernetes-proxy --metrics-addr=127.0.0.1:18080 \
    --health-probe-bind-address=127.0.0.1:18082
  "$K/kubectl" create --filename "$K/src/monitoring/example/prometheus-operator-crd/" > /dev/null
  # The operator leaves out what it does not find when it starts.
  "$K/kubectl" wait --for=condition=Established --all crd > /dev/null
  begin monitoring "$K/bin/prometheus-operator" --apiserver=https://10.77.0.1:6443 --ca-file="$PKI/ca.crt" \
    --cert-file="$PKI/admin.crt" --key-file="$PKI/admin.key" --web.listen-address=127.0.0.1:18083 \
    --prometheus-config-reloader=localhost/prometheus:1
  until_true ready
}

down() {
  [ -d "$K/run" ] || return 0
  "$K/kubectl" delete rayservice,deployment,prometheus --all --all-namespaces --timeout=40s || true
  "$K/kubectl" delete pod --all --all-namespaces --force --grace-period=0 > /dev/null 2>&1 || true
  local pods; pods=$(for each in $(containers containers list --quiet); do
    containers containers info "$each" | grep -o 'cni-[-0-9a-f]*'; done | sort -u)
  tac "$K/run/processes" | while read -r process name; do [ "$name" = containerd ] || kill "$process" || true; done
  sleep 3
  for each in $(containers tasks list --quiet); do containers tasks rm --force "$each" > /dev/null || true; done
  tac "$K/run/processes" | while read -r process _; do kill -KILL "$process" 2> /dev/null || true; done
  sleep 1
  kill "$(cat "$K/run/anchor")"
  for each in $NAME $pods; do ip netns delete "$each" 2> /dev/null || true; done
  find /sys/fs/cgroup -depth -type d \( -path "*/kubepods/*" -o -path "*/k8s.io/*" -o -name kubepods -o -name k8s.io \) \
    -exec rmdir {} + 2> /dev/null || true
  rm -rf "$K/run" "$K/kubelet" "$K/cni/addresses"
}

"$1"

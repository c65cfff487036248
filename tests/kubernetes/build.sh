#!/bin/bash
# Builds a one-node Kubernetes with KubeRay's operator, and Prometheus with its own, into $K: programs from the Go module
# proxy, and certificates.
#
# Needs root, Go 1.26 and Debian's containerd runc iptables containernetworking-plugins debootstrap iproute2 openssl
# gcc libc6-dev buildah. What is there already is not built again.
set -euo pipefail
mkdir -p "$K"/{bin,src,pki,cni/net.d}
KUBERNETES=1.34.4 ETCD=v3.6.16 KUBERAY=v1.6.2 COREDNS=v1.12.4
OPERATOR=v0.93.0 PROMETHEUS=v0.313.1
export CGO_ENABLED=0 GOFLAGS="-trimpath -mod=mod -buildvcs=false" GOTOOLCHAIN=local

module() { # NAME MODULE@VERSION: a copy of its source that can be changed
  [ -d "$K/src/$1" ] && return
  local source; source=$(cd / && go mod download -json "$2" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
  cp -r "$source" "$K/src/$1"
  chmod -R u+w "$K/src/$1"
  rm -rf "$K/src/$1"/{go.work,go.work.sum,vendor}
}

program() { # MODULE PROGRAM PACKAGE OPTIONS...
  [ -x "$K/bin/$2" ] || (cd "$K/src/$1" && nice go build "${@:4}" -ldflags="-s -w $versions" -o "$K/bin/$2" "$3")
}

certificate() { # NAME SUBJECT ALTERNATIVES
  openssl req -new -newkey rsa:2048 -nodes -keyout "$K/pki/$1.key" -subj "$2" -out "$K/pki/$1.csr"
  openssl x509 -req -in "$K/pki/$1.csr" -CA "$K/pki/ca.crt" -CAkey "$K/pki/ca.key" -CAcreateserial -days 365 \
    -out "$K/pki/$1.crt" -extfile <(echo "subjectAltName=$3")
}

access() { # NAME: how the bearer of a certificate reaches the API server
  cat > "$K/pki/$1.conf" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "https://10.77.0.1:6443", certificate-authority: $K/pki/ca.crt}}]
users: [{name: it, user: {client-certificate: $K/pki/$1.crt, client-key: $K/pki/$1.key}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
current-context: it
EOF
}

# The modules' archives lack the folders that `replace` names: the published versions take their place.
staging=v${KUBERNETES/1/0}
module kubernetes "k8s.io/kubernetes@v$KUBERNETES"
sed -i -E "s#=> \./staging/src/(k8s\.io/[a-z-]+)#=> \1 $staging#; s#(k8s\.io/[a-z-]+) v0\.0\.0\$#\1 $staging#" \
  "$K/src/kubernetes/go.mod"
module etcd "go.etcd.io/etcd/server/v3@$ETCD"
sed -i -E "s#(go\.etcd\.io/etcd/[a-z0-9/]+) => \.\./.*#\1 => \1 $ETCD#" "$K/src/etcd/go.mod"
module kuberay "github.com/ray-project/kuberay/ray-operator@$KUBERAY"
module coredns "github.com/coredns/coredns@$COREDNS"
module monitoring "github.com/prometheus-operator/prometheus-operator@$OPERATOR"
sed -i '/ => \.\/pkg/d' "$K/src/monitoring/go.mod"
module prometheus "github.com/prometheus/prometheus@$PROMETHEUS"

versions=
program etcd etcd .
program kuberay kuberay-operator .
program coredns coredns .
program monitoring prometheus-operator ./cmd/operator
program monitoring prometheus-config-reloader ./cmd/prometheus-config-reloader
# Of the kinds of discovery it has this one.
program prometheus prometheus ./cmd/prometheus -tags=remove_all_sd,enable_kubernetes_sd
for variable in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  versions+=" -X $variable.gitVersion=v$KUBERNETES -X $variable.gitMajor=1 -X $variable.gitMinor=34"
done
for each in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kube-proxy; do
  program kubernetes $each ./cmd/$each
done

if [ ! -f "$K/pki/kubelet.conf" ]; then
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$K/pki/ca.key" -out "$K/pki/ca.crt" -days 365 -subj /CN=ca
  openssl genrsa -out "$K/pki/accounts.key" 2048
  openssl rsa -in "$K/pki/accounts.key" -pubout -out "$K/pki/accounts.pub"
  certificate apiserver /CN=kube-apiserver DNS:kubernetes.default.svc,IP:10.77.0.1,IP:10.96.0.1
  certificate admin /O=system:masters/CN=admin DNS:admin
  certificate kubelet /O=system:nodes/CN=system:node:n1 DNS:n1,IP:10.77.0.1
  access admin
  access kubelet
fi 2> /dev/null

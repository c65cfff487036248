#!/bin/bash
# `make test-kubernetes`: what it builds stays in $K for the next time.
set -euo pipefail
export K=${K:-${XDG_CACHE_HOME:-$HOME/.cache}/ensemble-kubernetes}
cd "$(dirname "$0")/../.."
tests/kubernetes/build.sh
tests/kubernetes/tools.sh
tests/kubernetes/images.sh
trap 'tests/kubernetes/node.sh down' EXIT
tests/kubernetes/node.sh up
python -m tests.kubernetes.prove

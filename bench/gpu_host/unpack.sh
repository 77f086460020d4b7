#!/usr/bin/env bash
# On a GPU host that can reach no package registry: make WHERE a checkout that runs `armwise run`, from what was carried.
#   unpack.sh PARTS_DIR SOURCE_TAR WHERE
# PARTS_DIR/part.* are a compressed tar of site-packages: vLLM with what it needs, and armwise's few (README.md here).
# SOURCE_TAR is the checkout. The host's own python3 brings torch; what it has is used, what was carried counts first.
set -euo pipefail
parts=${1:?} source=${2:?} where=${3:?}
mkdir -p "$where/site"
cat "$parts"/part.* | python3 -c 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|*").extractall(sys.argv[1], filter="tar")' "$where/site" &
unpacking=$!
tar xzf "$source" -C "$where"
python3 -m venv --without-pip "$where/.venv"
own=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
packages=$(echo "$where"/.venv/lib/python3*/site-packages)
printf 'import site; list(map(site.addsitedir, (%s)))\n' "'$where/site', '$where', '$own'" > "$packages/host.pth"
ln -s .venv "$where/.venv-engine"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$where/pyproject.toml")
mkdir "$packages/armwise-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: armwise\nVersion: %s\n' "$version" > "$packages/armwise-$version.dist-info/METADATA"
printf '#!/bin/sh\nexec "%s/.venv/bin/python" -c "from tasks.cli import main; main()" "$@"\n' "$where" > "$where/.venv/bin/armwise"
chmod +x "$where/.venv/bin/armwise"
wait $unpacking

#!/bin/sh
# Installs the system packages that a target needs, with apt where this is root; otherwise says what is missing and goes on.
# usage: deploy/system-packages.sh demo|test
set -eu

case "${1:-}" in
demo) wanted="bwrap:bubblewrap git:git" ;;
test) wanted="bwrap:bubblewrap git:git chromium:chromium chromedriver:chromium-driver" ;;
*)
    echo "usage: deploy/system-packages.sh demo|test" >&2
    exit 2
    ;;
esac

missing=""
for pair in $wanted; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing system packages:$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of package names
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "not installed (no root or no apt-get):$missing — what needs them is skipped or refused, with the reason" >&2
fi

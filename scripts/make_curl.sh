#!/usr/bin/env bash
# Builds libcurl as a static archive, for portable programs (scripts/make_portable.sh): Debian's library depends on 30 others.
# Uses Debian's source package with its patches, in this system's version. Only HTTP and HTTPS, with OpenSSL, without HTTP/2,
# compression and a CA bundle. OpenSSL itself is Debian's static archives.
#
#   scripts/make_curl.sh [FOLDER]     default: build/curl; does nothing if it is complete
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian_source.sh
mkdir -p "$(dirname "${1:-build/curl}")"
folder=$(realpath "${1:-build/curl}")
# shellcheck disable=SC2016
version=$(dpkg-query -W -f='${source:Version}' libcurl4-openssl-dev)
[[ $(cat "$folder/.complete" 2>/dev/null) != "$version" ]] || exit 0

command -v dpkg-source >/dev/null || { echo "make_curl: dpkg-source is missing: apt-get install dpkg-dev" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The patches contain Debian's security fixes.
fetch_debian_source "$work" curl "$version" >"$work/source.log" 2>&1 || { tail -n 20 "$work/source.log" >&2; exit 1; }
mv "$work"/curl-*/ "$work/source"

echo "make_curl: libcurl $version, a minute"
flags="-O2 -DNDEBUG -w -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffile-prefix-map=$work/source=curl"
options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE="$flags"
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib
  -DBUILD_SHARED_LIBS=OFF -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DPICKY_COMPILER=OFF
  -DHTTP_ONLY=ON -DENABLE_THREADED_RESOLVER=ON -DENABLE_IPV6=ON -DENABLE_UNIX_SOCKETS=OFF
  -DCURL_USE_OPENSSL=ON -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none
  -DCURL_ZLIB=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBPSL=OFF -DCURL_USE_LIBSSH2=OFF
  -DCURL_DISABLE_ALTSVC=ON -DCURL_DISABLE_COOKIES=ON -DCURL_DISABLE_DOH=ON -DCURL_DISABLE_HSTS=ON -DCURL_DISABLE_MIME=ON
  -DCURL_DISABLE_NETRC=ON -DCURL_DISABLE_NTLM=ON)
cmake -G Ninja -S "$work/source" -B "$work/build" "${options[@]}" >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; exit 1; }
cmake --build "$work/build" >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; exit 1; }
rm -rf "$folder"
cmake --install "$work/build" >/dev/null
echo "$version" >"$folder/.complete"

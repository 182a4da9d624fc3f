# shellcheck shell=bash
# Debian source packages, for scripts that build a library themselves (make_ffmpeg.sh, make_curl.sh). To be sourced.

# fetch_debian_source FOLDER PACKAGE VERSION [OPTION…]: runs `apt-get source` in the existing folder, with this system's package
# sources plus source packages. The options are those of apt-get.
fetch_debian_source() {
  local folder=$1 package=$2 version=$3 file
  mkdir -p "$folder/sources" "$folder/lists/partial" "$folder/cache/archives/partial"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [[ ! -f $file ]] || sed 's/^Types: deb$/Types: deb-src/; s/^deb /deb-src /' "$file" >"$folder/sources/$(basename "$file")"
  done
  local apt=(apt-get -qq -o Dir::Etc::sourcelist="$folder/sources/sources.list" -o Dir::Etc::sourceparts="$folder/sources"
    -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User="$(id -un)")
  "${apt[@]}" update
  (cd "$folder" && "${apt[@]}" source "${@:4}" "$package=$version")
}

#!/usr/bin/env bash
# Builds FFmpeg's video decoders as static archives, for portable programs (scripts/make_portable.sh): Debian's libraries depend
# on 131 others. Uses Debian's source package in this system's version, as LGPL 2.1 or later, without encoders and external
# libraries, so without AV1 (which needs dav1d).
#
#   scripts/make_ffmpeg.sh [FOLDER]     default: build/ffmpeg; does nothing if it is complete
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian_source.sh
mkdir -p "$(dirname "${1:-build/ffmpeg}")"
folder=$(realpath "${1:-build/ffmpeg}")
version=$(dpkg-query -W -f='${Version}' libavcodec-dev)
[[ $(cat "$folder/.complete" 2>/dev/null) != "$version" ]] || exit 0

decoders=h263,h264,hevc,vp8,vp9,mpeg1video,mpeg2video,mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4v3,wmv1,wmv2,wmv3,vc1,flv,theora,vp6,vp6f
decoders+=,prores,dnxhd,dvvideo,mjpeg,gif,png,rawvideo,ffv1,huffyuv,cinepak
# Audio: only the parsers that identify a container's streams when a file is opened.
decoders+=,aac,mp2float,mp3float,ac3,vorbis,flac,pcm_s16le
demuxers=mov,matroska,avi,mpegts,mpegps,mpegvideo,flv,ogg,asf,gif,h264,hevc,m4v,ivf,dv
parsers=h263,h264,hevc,vp8,vp9,av1,mpegvideo,mpeg4video,vc1,mjpeg,gif,png,dnxhd,aac,mpegaudio,ac3,opus,vorbis,flac

command -v nasm >/dev/null || { echo "make_ffmpeg: nasm is missing: apt-get install nasm" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch_debian_source "$work" ffmpeg "$version" --download-only
(cd "$work" && tar xf ffmpeg_*.orig.tar.xz)
mv "$work"/ffmpeg-*/ "$work/source"
mkdir "$work/build"
cd "$work/build"
echo "make_ffmpeg: FFmpeg $version, some minutes"
"$work/source/configure" --prefix="$folder" --disable-everything --disable-autodetect --disable-programs --disable-doc \
  --disable-network --disable-avdevice --disable-avfilter --disable-postproc --disable-swresample --disable-debug --enable-pic \
  --enable-zlib --extra-cflags=-w --enable-protocol=file --enable-decoder="$decoders" --enable-demuxer="$demuxers" --enable-parser="$parsers" >configure.log ||
  { tail -n 20 configure.log >&2; exit 1; }
make -j"$(nproc)" >/dev/null
rm -rf "$folder"
make install-libs install-headers >/dev/null
echo "$version" >"$folder/.complete"

#include "image/volume/gzip_stream.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

constexpr size_t kStoredBytes = size_t{1} << 16;

/// Of zlib's inflateInit2: the largest window, and gzip's header and trailer around the data.
constexpr int kGzipWindow = 15 + 16;

}  // namespace

GzipStream::GzipStream(VolumeInput input) : input_(std::move(input)), stored_(kStoredBytes) {
  if (inflateInit2(&zlib_, kGzipWindow) != Z_OK) throw run_error("{}: no memory to inflate the scan", name());
}

GzipStream::~GzipStream() {
  inflateEnd(&zlib_);
}

void GzipStream::refill() {
  if (zlib_.avail_in > 0) return;
  const size_t count = input_.read(stored_);
  if (count == 0) throw data_error("{}: the compressed scan is cut off; copy or convert it again", name());
  zlib_.next_in = stored_.data();
  zlib_.avail_in = static_cast<uInt>(count);
}

void GzipStream::begin_next_member() {
  // Tapes and some archivers fill up with zeros, which gzip passes over too.
  while (*zlib_.next_in == 0) {
    ++zlib_.next_in;
    --zlib_.avail_in;
    refill();
  }
  if (*zlib_.next_in != kGzipMagic[0]) {
    throw data_error(
        "{}: the compressed scan ends before its voxels do, and something else follows; copy or convert it again",
        name());
  }
  inflateReset(&zlib_);
  member_has_ended_ = false;
}

void GzipStream::inflate_some() {
  refill();
  if (member_has_ended_) begin_next_member();
  const int result = inflate(&zlib_, Z_NO_FLUSH);
  member_has_ended_ = result == Z_STREAM_END;
  // Z_BUF_ERROR: it wants more input.
  if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
    throw data_error("{}: the compressed scan is damaged ({}); copy or convert it again", name(),
                     zlib_.msg == nullptr ? "zlib knows no more" : zlib_.msg);
  }
}

void GzipStream::read(std::span<uint8_t> out) {
  zlib_.next_out = out.data();
  zlib_.avail_out = static_cast<uInt>(out.size());
  while (zlib_.avail_out > 0) inflate_some();
}

void GzipStream::skip(uint64_t bytes) {
  std::vector<uint8_t> passed(std::min<uint64_t>(bytes, kStoredBytes));
  while (bytes > 0) {
    const size_t count = std::min<uint64_t>(bytes, passed.size());
    read(std::span(passed).first(count));
    bytes -= count;
  }
}

void GzipStream::finish() {
  // A byte more than the header promises is no fault: then the member goes on, and its checksum stays unseen.
  uint8_t more = 0;
  zlib_.next_out = &more;
  zlib_.avail_out = 1;
  while (!member_has_ended_ && zlib_.avail_out > 0) inflate_some();
}

uint64_t GzipStream::most_bytes() const {
  // Deflate makes of 258 bytes 2 bits at best (https://zlib.net/zlib_tech.html).
  constexpr uint64_t kMostInflation = 1032;
  return input_.size() * kMostInflation;
}

}  // namespace vlmtrain::image

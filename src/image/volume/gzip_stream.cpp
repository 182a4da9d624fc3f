#include "image/volume/gzip_stream.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

constexpr size_t kInputBufferBytes = size_t{1} << 16;

/// Of zlib's inflateInit2: the largest window, and gzip's header and trailer around the data.
constexpr int kGzipWindowBits = 15 + 16;

}  // namespace

GzipStream::GzipStream(VolumeInput input) : input_(std::move(input)), input_buffer_(kInputBufferBytes) {
  if (inflateInit2(&zlib_, kGzipWindowBits) != Z_OK) throw run_error("{}: no memory to inflate the scan", name());
}

GzipStream::~GzipStream() {
  inflateEnd(&zlib_);
}

void GzipStream::refill() {
  if (zlib_.avail_in > 0) return;
  const size_t count = input_.read(input_buffer_);
  if (count == 0) throw data_error("{}: the compressed scan is cut off; copy or convert it again", name());
  zlib_.next_in = input_buffer_.data();
  zlib_.avail_in = static_cast<uInt>(count);
}

void GzipStream::start_next_member() {
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

void GzipStream::inflate_next() {
  refill();
  if (member_has_ended_) start_next_member();
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
  while (zlib_.avail_out > 0) inflate_next();
}

void GzipStream::skip(uint64_t bytes) {
  std::vector<uint8_t> discarded(std::min<uint64_t>(bytes, kInputBufferBytes));
  while (bytes > 0) {
    const size_t count = std::min<uint64_t>(bytes, discarded.size());
    read(std::span(discarded).first(count));
    bytes -= count;
  }
}

void GzipStream::finish() {
  // A byte more than the header promises is no fault: then the member goes on, and its checksum stays unseen.
  uint8_t extra_byte = 0;
  zlib_.next_out = &extra_byte;
  zlib_.avail_out = 1;
  while (!member_has_ended_ && zlib_.avail_out > 0) inflate_next();
}

uint64_t GzipStream::max_bytes() const {
  // Deflate makes of 258 bytes 2 bits at best (https://zlib.net/zlib_tech.html).
  constexpr uint64_t kMaxInflationRatio = 1032;
  return input_.size() * kMaxInflationRatio;
}

}  // namespace vlmtrain::image

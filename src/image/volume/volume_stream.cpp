#include "image/volume/volume_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "image/codec/byte_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

namespace {

/// An uncompressed scan.
class PlainVolumeStream final : public VolumeStream {
 public:
  explicit PlainVolumeStream(VolumeInput input) : input_(std::move(input)) {}

  const std::string& name() const override { return input_.name(); }
  void read(std::span<uint8_t> out) override {
    if (input_.read(out) != out.size()) throw data_error("{}: the scan is truncated; copy or convert it again", name());
  }
  void skip(uint64_t bytes) override { input_.seek(input_.position() + bytes); }
  void verify_checksum() override {}
  uint64_t max_decompressed_bytes() const override { return input_.size(); }
  bool is_compressed() const override { return false; }

 private:
  VolumeInput input_;
};

/// The number of bytes that are read from the file at a time. Large enough that system calls do not
/// matter. Not tuned.
constexpr size_t kInputBufferBytes = size_t{1} << 16;

/// Argument of zlib's inflateInit2: the largest window (15), plus 16 for the gzip format.
constexpr int kGzipWindowBits = 15 + 16;

}  // namespace

std::unique_ptr<VolumeStream> open_volume_stream(const io::MediaRef& scan) {
  VolumeInput input(scan);
  std::array<uint8_t, 64> prefix{};  // longer than the first line of an LFS pointer
  const size_t num_prefix_bytes = std::min<uint64_t>(prefix.size(), input.size());
  if (input.read(std::span(prefix).first(num_prefix_bytes)) == num_prefix_bytes) {
    io::throw_if_lfs_pointer(input.name(), {reinterpret_cast<const char*>(prefix.data()), num_prefix_bytes});
  }
  input.seek(0);
  std::array<uint8_t, 2> magic{};
  const bool has_magic = input.read(magic) == magic.size();
  input.seek(0);
  if (has_magic && magic == kGzipMagic) return std::make_unique<GzipVolumeStream>(std::move(input));
  return std::make_unique<PlainVolumeStream>(std::move(input));
}

VolumeInput::VolumeInput(const io::MediaRef& scan) : name_(scan.path), bytes_(scan.bytes) {
  if (bytes_) {
    size_ = io::get_media_bytes(scan).size();
    return;
  }
  check_is_regular_file(name_, "the scan");
  file_.open(name_, std::ios::binary | std::ios::ate);
  if (!file_) throw make_open_error(name_, "the scan", errno);
  size_ = static_cast<uint64_t>(file_.tellg());
  file_.seekg(0);
}

size_t VolumeInput::read(std::span<uint8_t> out) {
  if (position_ >= size_) return 0;
  const size_t count = std::min<uint64_t>(out.size(), size_ - position_);
  if (bytes_) {
    std::memcpy(out.data(), bytes_->data() + position_, count);
  } else {
    file_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count));
    if (file_.bad() || static_cast<size_t>(file_.gcount()) != count) {
      throw data_error("{}: cannot read the whole scan; check the disk or network", name_);
    }
  }
  position_ += count;
  return count;
}

void VolumeInput::seek(uint64_t position) {
  position_ = position;
  if (!bytes_) file_.seekg(static_cast<std::streamoff>(position));
}

GzipVolumeStream::GzipVolumeStream(VolumeInput input) : input_(std::move(input)), input_buffer_(kInputBufferBytes) {
  if (inflateInit2(&zlib_stream_, kGzipWindowBits) != Z_OK)
    throw run_error("{}: not enough memory to decompress the scan; give the job more memory", name());
}

GzipVolumeStream::~GzipVolumeStream() {
  inflateEnd(&zlib_stream_);
}

void GzipVolumeStream::refill_input_buffer() {
  if (zlib_stream_.avail_in > 0) return;
  const size_t count = input_.read(input_buffer_);
  if (count == 0) throw data_error("{}: the compressed scan is truncated; copy or convert it again", name());
  zlib_stream_.next_in = input_buffer_.data();
  zlib_stream_.avail_in = static_cast<uInt>(count);
}

void GzipVolumeStream::start_next_member() {
  // Some archivers pad with zeros, which gzip ignores too.
  while (*zlib_stream_.next_in == 0) {
    ++zlib_stream_.next_in;
    --zlib_stream_.avail_in;
    refill_input_buffer();
  }
  if (*zlib_stream_.next_in != kGzipMagic[0]) {
    throw data_error(
        "{}: the compressed scan ends before its last voxel, and other data follow; copy or convert it again", name());
  }
  inflateReset(&zlib_stream_);
  has_member_ended_ = false;
}

void GzipVolumeStream::inflate_next_bytes() {
  refill_input_buffer();
  if (has_member_ended_) start_next_member();
  const int result = inflate(&zlib_stream_, Z_NO_FLUSH);
  has_member_ended_ = result == Z_STREAM_END;
  // Z_BUF_ERROR: zlib needs more input.
  if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
    throw data_error("{}: the compressed scan is damaged ({}); copy or convert it again", name(),
                     zlib_stream_.msg == nullptr ? "unknown zlib error" : zlib_stream_.msg);
  }
}

void GzipVolumeStream::read(std::span<uint8_t> out) {
  zlib_stream_.next_out = out.data();
  // Callers read at most a block of rows or kInputBufferBytes, which fits in uInt.
  zlib_stream_.avail_out = static_cast<uInt>(out.size());
  while (zlib_stream_.avail_out > 0) inflate_next_bytes();
}

void GzipVolumeStream::skip(uint64_t bytes) {
  std::vector<uint8_t> discarded_bytes(std::min<uint64_t>(bytes, kInputBufferBytes));
  while (bytes > 0) {
    const size_t count = std::min<uint64_t>(bytes, discarded_bytes.size());
    read(std::span(discarded_bytes).first(count));
    bytes -= count;
  }
}

void GzipVolumeStream::verify_checksum() {
  // The checksum follows the member's last byte: inflate() verifies it while it looks for one more
  // byte. Data after the last voxel is not an error; the checksum is then not verified.
  uint8_t extra_byte = 0;
  zlib_stream_.next_out = &extra_byte;
  zlib_stream_.avail_out = 1;
  while (!has_member_ended_ && zlib_stream_.avail_out > 0) inflate_next_bytes();
}

uint64_t GzipVolumeStream::max_decompressed_bytes() const {
  // Deflate encodes at most 258 bytes in 2 bits (https://zlib.net/zlib_tech.html).
  constexpr uint64_t kMaxInflationRatio = 1032;
  return input_.size() * kMaxInflationRatio;
}

}  // namespace vlmtrain::image

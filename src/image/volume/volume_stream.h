#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// A forward stream of a scan's decompressed bytes. Not thread-safe.
class VolumeStream {
 public:
  virtual ~VolumeStream() = default;

  /// Returns the path of the scan, for messages.
  virtual const std::string& name() const = 0;

  /// Fills `out` with the next bytes. Throws UserError (kBadData) if the stream is corrupt or has
  /// fewer bytes.
  virtual void read(std::span<uint8_t> out) = 0;

  /// Moves forward by a number of bytes. May throw the errors of read() here or in the next read().
  virtual void skip(uint64_t bytes) = 0;

  /// Verifies the checksum of a compressed scan after its last voxel. Throws UserError (kBadData)
  /// if it is wrong. Does nothing for uncompressed scans. No other method may be called afterwards.
  virtual void verify_checksum() = 0;

  /// Returns an upper bound of the number of decompressed bytes, from the size of the file.
  virtual uint64_t max_decompressed_bytes() const = 0;
  virtual bool is_compressed() const = 0;
};

/// Opens a scan at its first byte. The first two bytes decide whether it is compressed. Throws
/// UserError (kBadData) if it cannot be opened or is a Git LFS pointer.
std::unique_ptr<VolumeStream> open_volume_stream(const io::MediaRef& scan);

/// A seekable input of a scan's stored bytes: a file, or embedded bytes.
class VolumeInput {
 public:
  /// Throws UserError (kBadData) if the file cannot be opened.
  explicit VolumeInput(const io::MediaRef& scan);

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }

  /// Reads the next bytes to the start of `out`. Returns their number, which is smaller than
  /// out.size() only at the end of the file. Throws UserError (kBadData) if the file cannot be
  /// read.
  size_t read(std::span<uint8_t> out);

  /// Moves to a byte of the file. A position beyond the end is valid; nothing can be read there.
  void seek(uint64_t position);

 private:
  std::string name_;
  std::shared_ptr<const std::string> bytes_;  // null for a file
  std::ifstream file_;
  uint64_t size_ = 0;
  uint64_t position_ = 0;
};

/// The first two bytes of a gzip member.
inline constexpr std::array<uint8_t, 2> kGzipMagic{0x1F, 0x8B};

/// A stream of one or more gzip members (RFC 1952), concatenated or with zeros between them.
/// Inflates only the requested bytes.
class GzipVolumeStream final : public VolumeStream {
 public:
  explicit GzipVolumeStream(VolumeInput input);
  GzipVolumeStream(const GzipVolumeStream&) = delete;
  GzipVolumeStream& operator=(const GzipVolumeStream&) = delete;
  ~GzipVolumeStream() override;

  const std::string& name() const override { return input_.name(); }
  void read(std::span<uint8_t> out) override;
  void skip(uint64_t bytes) override;
  void verify_checksum() override;
  uint64_t max_decompressed_bytes() const override;
  bool is_compressed() const override { return true; }

 private:
  /// Reads compressed bytes if none remain. Throws UserError (kBadData) at the end of the file.
  void refill_input_buffer();
  /// Skips zeros and starts the next member. REQUIRES: the last member has ended.
  void start_next_member();
  /// Calls inflate() once, with the output that zlib_stream_ has.
  void inflate_next_bytes();

  VolumeInput input_;
  std::vector<uint8_t> input_buffer_;
  z_stream zlib_stream_{};
  bool has_member_ended_ = false;
};

}  // namespace vlmtrain::image

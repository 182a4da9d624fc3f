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

/// A forward stream of a scan's decompressed bytes.
class VolumeStream {
 public:
  virtual ~VolumeStream() = default;

  virtual const std::string& name() const = 0;

  /// Fills `out`. Throws UserError (kBadData) if the stream is corrupt or ends before.
  virtual void read(std::span<uint8_t> out) = 0;
  virtual void skip(uint64_t bytes) = 0;

  /// Reads the rest of the current member after the last voxel. Throws UserError (kBadData) if its
  /// checksum is wrong.
  virtual void finish() = 0;

  /// Returns an upper bound of the stream's length, regardless of the header.
  virtual uint64_t max_bytes() const = 0;
  virtual bool is_compressed() const = 0;
};

/// Opens a scan. The first two bytes decide whether it is compressed.
std::unique_ptr<VolumeStream> open_volume_stream(const io::MediaRef& scan);

/// The stored bytes of a scan, in order: a file, or embedded bytes.
class VolumeInput {
 public:
  /// Throws UserError (kBadData) if the file cannot be opened.
  explicit VolumeInput(const io::MediaRef& scan);

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }

  /// Fills `out` from its start and returns the number of bytes, which is smaller only at the end.
  size_t read(std::span<uint8_t> out);
  void seek(uint64_t position);

 private:
  std::string name_;
  std::shared_ptr<const std::string> bytes_;
  std::ifstream file_;
  uint64_t size_ = 0;
  uint64_t position_ = 0;
};

inline constexpr std::array<uint8_t, 2> kGzipMagic{0x1F, 0x8B};

/// One or more gzip members (RFC 1952), concatenated or with zeros between them. Inflates only
/// requested bytes.
class GzipStream final : public VolumeStream {
 public:
  explicit GzipStream(VolumeInput input);
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream() override;

  const std::string& name() const override { return input_.name(); }
  void read(std::span<uint8_t> out) override;
  void skip(uint64_t bytes) override;
  void finish() override;
  uint64_t max_bytes() const override;
  bool is_compressed() const override { return true; }

 private:
  void refill();
  void start_next_member();
  void inflate_next();

  VolumeInput input_;
  std::vector<uint8_t> input_buffer_;
  z_stream zlib_{};
  bool member_has_ended_ = false;
};

}  // namespace vlmtrain::image

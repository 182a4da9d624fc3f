#pragma once

#include <zlib.h>

#include <array>
#include <vector>

#include "image/volume/volume_input.h"
#include "image/volume/volume_stream.h"

namespace vlmtrain::image {

inline constexpr std::array<uint8_t, 2> kGzipMagic{0x1F, 0x8B};

/// One or more gzip members (RFC 1952), end to end or with zeros between. Nothing is inflated that is not asked for.
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

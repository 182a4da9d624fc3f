#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

/// What a scan's file holds once it is no longer compressed, from its first byte to its last.
class VolumeStream {
 public:
  virtual ~VolumeStream() = default;

  virtual const std::string& name() const = 0;

  /// Fills `out`. A data error where the stream ends before, or is damaged.
  virtual void read(std::span<uint8_t> out) = 0;
  virtual void skip(uint64_t bytes) = 0;

  /// Called behind the last byte that is wanted: a data error where a checksum that follows there tells of damage.
  virtual void finish() = 0;

  /// There cannot be more bytes than these, whatever a header says.
  virtual uint64_t max_bytes() const = 0;
  virtual bool is_compressed() const = 0;
};

/// Which kind the scan is, its first two bytes tell.
std::unique_ptr<VolumeStream> open_volume_stream(const io::MediaRef& scan);

}  // namespace vlmtrain::image

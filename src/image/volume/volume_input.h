#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::image {

/// The bytes of a scan as they are stored, in order: of a file, or those that the data set itself carries.
class VolumeInput {
 public:
  /// A data error where the file cannot be opened.
  explicit VolumeInput(const io::MediaRef& scan);

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }

  /// Fills `out` from its beginning on and says with how many bytes: fewer only at the end.
  size_t read(std::span<uint8_t> out);
  void seek(uint64_t position);

 private:
  std::string name_;
  std::shared_ptr<const std::string> bytes_;
  std::ifstream file_;
  uint64_t size_ = 0;
  uint64_t position_ = 0;
};

}  // namespace vlmtrain::image

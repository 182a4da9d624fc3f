#include "image/volume/volume_input.h"

#include <algorithm>
#include <cstring>

#include "image/byte_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/medium_bytes.h"

namespace vlmtrain::image {

VolumeInput::VolumeInput(const io::MediaRef& scan) : name_(scan.path), bytes_(scan.bytes) {
  if (bytes_) {
    size_ = io::get_media_bytes(scan).size();
    return;
  }
  check_is_file(name_, "the scan");
  file_.open(name_, std::ios::binary | std::ios::ate);
  if (!file_) throw data_error("{}: the scan cannot be opened; check the path and data.image_root", name_);
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
      throw data_error("{}: the scan cannot be read to its end; check the disk or network", name_);
    }
  }
  position_ += count;
  return count;
}

void VolumeInput::seek(uint64_t position) {
  position_ = position;
  if (!bytes_) file_.seekg(static_cast<std::streamoff>(position));
}

}  // namespace vlmtrain::image

#include "vlmtrain/io/media_ref.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

const std::shared_ptr<const std::string>& omitted_bytes() {
  static const auto bytes = std::make_shared<const std::string>();
  return bytes;
}

const std::string& get_media_bytes(const MediaRef& media_ref) {
  VLMTRAIN_CHECK(media_ref.bytes != nullptr && media_ref.bytes != omitted_bytes(),
                 "{} is read, and its record was read without bytes", media_ref.path);
  return *media_ref.bytes;
}

}  // namespace vlmtrain::io

#include "vlmtrain/io/medium_bytes.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

const std::shared_ptr<const std::string>& dropped_bytes() {
  static const auto bytes = std::make_shared<const std::string>();
  return bytes;
}

const std::string& bytes_of(const Medium& medium) {
  VLMTRAIN_CHECK(medium.bytes != nullptr && medium.bytes != dropped_bytes(),
                 "{} is read, and its record was read without bytes", medium.path);
  return *medium.bytes;
}

}  // namespace vlmtrain::io

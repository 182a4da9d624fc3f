#pragma once

#include <string>

namespace vlmtrain::io {

/// Something in a record that was not used although it is there. It does not change the sample; what would change what
/// is learned is the record's `problem` instead.
struct Notice {
  std::string kind;     ///< a fixed phrase that notices are counted by, such as `key "source" of a record`
  std::string example;  ///< an excerpt of the value in this record; may be empty

  bool operator==(const Notice&) const = default;
};

}  // namespace vlmtrain::io

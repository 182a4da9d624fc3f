#pragma once

#include <cstddef>
#include <string>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// What the data says of a record's volume, for captions: "T1w, sub-01"; its `place` is that among Record::images.
/// Empty where it says nothing.
std::string scan_name(const Record& record, size_t place);

}  // namespace vlmtrain::io

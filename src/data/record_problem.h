#pragma once

#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// The error of a record that cannot be used. REQUIRES: record.problem is not empty.
SampleError make_record_error(const io::Record& record);

}  // namespace vlmtrain::data

#pragma once

#include <cstdint>

#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::train {

/// The sample as a run would train on it; one that cannot be made says why.
report::SamplePreview render_sample(const io::Records& records, const models::Processor& processor, int64_t index);

}  // namespace vlmtrain::train

#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// All that a run refuses before it looks at its samples, plans and loads: its keys, what of the model is trained, the
/// tasks of `records`, the run that output.dir holds already. Reads no weights and writes nothing. Throws UserError.
void preflight_check(const Config& config, const io::Records& records);

/// Looks at `max_samples` of the data set in `file`, spread over it, as data.check_at_start says, unless bad samples
/// are to be skipped. Throws UserError (kBadData) that says how many are bad and names the first.
void check_no_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                          const std::filesystem::path& file, int64_t max_samples);

}  // namespace vlmtrain::train

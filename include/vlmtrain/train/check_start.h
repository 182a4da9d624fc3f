#pragma once

#include <vector>

#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// All that a run refuses before it looks at its samples, plans and loads: its keys, what of the model is trained, the
/// tasks of `records`, the run that output.dir holds already. Reads no weights and writes nothing. Throws UserError.
void check_start(const Config& config, const std::vector<io::Record>& records);

}  // namespace vlmtrain::train

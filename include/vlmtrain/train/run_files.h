#pragma once

#include <filesystem>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Looks at what stands where the run will write, before it writes anything: UserError (kUsage) where an input of the
/// run (its configuration, checkpoint, adapter, data) is a file that it writes into output.dir, under whatever name, or
/// stands in a folder that it clears; UserError (kFailed) where a pipe or device has the name of such a file. A
/// `config_file` that a run resolved may be the folder's own config.yaml: it is written again with the same content.
void check_run_files(const Config& config, const std::filesystem::path& config_file);

}  // namespace vlmtrain::train

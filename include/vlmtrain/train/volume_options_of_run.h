#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/data/volume_options.h"

namespace vlmtrain::train {

/// How scans are read for the model in `checkpoint`: as its run read them, where it is one of a run, with what
/// `overrides` say otherwise (`data.volume.spacing=1`). Throws UserError (kUsage) for overrides of other keys.
data::VolumeOptions volume_options_of_run(const std::filesystem::path& checkpoint,
                                          const std::vector<std::string>& overrides);

}  // namespace vlmtrain::train

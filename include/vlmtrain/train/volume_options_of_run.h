#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/data/volume_options.h"

namespace vlmtrain::train {

/// Beside the weights of a model that was trained on volumes: how they were read, where that is not by default, as one
/// JSON object of keys data.volume.*.
inline constexpr const char* kVolumeSettingsFile = "volume_settings.json";

/// What stands there; empty: nothing differs from the defaults.
std::string format_volume_settings(const data::VolumeOptions& options);

/// How scans are read for the model in `checkpoint`: as that file says, or the state of the run that it is one of, with
/// what `overrides` say otherwise (`data.volume.spacing=1`). Throws UserError: kUsage for overrides of other keys,
/// kBadData for a file that is none.
data::VolumeOptions load_volume_options(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& overrides);

}  // namespace vlmtrain::train

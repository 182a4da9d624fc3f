#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::train {

/// Removes from `settings` (KEY=VALUE each) and returns those of how records are read: data.columns, data.ignore_keys
/// and data.image_root.
std::vector<std::string> extract_record_settings(std::vector<std::string>& settings);

/// Returns how records are read for a model in `checkpoint`: as `settings` say, else with the data.ignore_keys of the
/// run that it is a checkpoint of. Throws UserError: kUsage for settings that are invalid, kBadData for a state that
/// cannot be read.
io::RecordSettings load_record_settings(const std::filesystem::path& checkpoint,
                                        const std::vector<std::string>& settings);

}  // namespace vlmtrain::train

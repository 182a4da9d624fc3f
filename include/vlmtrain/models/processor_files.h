#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The processor files of a model trained with other settings than its checkpoint's.
struct ProcessorFiles {
  std::map<std::string, std::string> files;  ///< contents of the changed files, by name
  /// Settings without a key in transformers' processor, each a sentence that begins with our key.
  std::vector<std::string> unsaved_settings;
};

/// Returns the processor files that make transformers' processor give the same tokens and pixels as
/// a processor of `folder` with `settings`: limits of pixels, tiles and frames, and the frame rate.
/// Sets all copies of a setting. `has_videos` saves the video sampling even if `settings` are the
/// defaults. Throws UserError as load_processor().
ProcessorFiles make_processor_files(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                    bool has_videos);

/// Returns a key of everything except records and media that sample sizes depend on: the processor
/// files of the checkpoint `folder` and all of `settings`. Processors with equal keys make samples
/// of equal sizes.
std::string compute_sample_key(const std::filesystem::path& folder, const ProcessorSettings& settings);

}  // namespace vlmtrain::models

#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The processor files to save with a model that was trained with other settings than those of its
/// checkpoint.
struct ProcessorFiles {
  std::map<std::string, std::string> files;  ///< contents of the changed files, by name
  /// Settings that transformers' processor has no key for; each is a sentence that begins with the
  /// key of vlmtrain's configuration.
  std::vector<std::string> unsaved_settings;
};

/// Returns the processor files that make transformers' processor give the same tokens and pixels as
/// a processor of `folder` with `settings`: limits of pixels, tiles and frames, and the frame rate.
/// Updates all files that store a setting. With `has_videos`, the video sampling is saved even if
/// it equals the defaults. Throws UserError as load_processor().
ProcessorFiles make_processor_files(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                    bool has_videos);

/// Returns a hash of the processor files of the checkpoint `folder` and of all `settings`.
/// Processors with equal keys make samples of equal sizes from the same records and media.
std::string compute_sample_shape_key(const std::filesystem::path& folder, const ProcessorSettings& settings);

}  // namespace vlmtrain::models

#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// Processor files of a model that was trained with other settings than its checkpoint's own.
struct ProcessorFiles {
  std::map<std::string, std::string> files;  ///< contents by name, of those that differ from the checkpoint's
  /// Settings that transformers' processor of the family has no key for, a sentence each that begins with the key.
  std::vector<std::string> unsaved_settings;
};

/// Returns the processor files with which transformers' processor gives the tokens and pixels that a processor of
/// `folder` with `settings` gives: limits of pixels, tiles and frames, and the frame rate. All copies of a setting get
/// the same value. `has_videos`: the model was trained on videos, so that their sampling is saved whatever it is; else
/// only where `settings` differ from the defaults. Throws UserError as load_processor.
ProcessorFiles make_processor_files(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                    bool has_videos);

/// What the sizes of samples depend on beside the records and their files: the content of the processor's own files in
/// the checkpoint `folder`, and all of `settings`. Two processors with the same key make samples of the same sizes.
std::string compute_sample_key(const std::filesystem::path& folder, const ProcessorSettings& settings);

}  // namespace vlmtrain::models

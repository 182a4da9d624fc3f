#pragma once

#include <filesystem>
#include <string>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// What the sizes of samples depend on beside the records and their files: the content of the processor's own files in
/// the checkpoint `folder`, and all of `settings`. Two processors with the same key make samples of the same sizes.
std::string compute_sample_key(const std::filesystem::path& folder, const ProcessorSettings& settings);

}  // namespace vlmtrain::models

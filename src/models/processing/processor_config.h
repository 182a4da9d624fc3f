#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::models {

/// Throws UserError (kBadData) where `key` of `folder`/processor_config.json, by which transformers writes the tokens
/// of an image, is another number than the model of config.json has features (`features`) of it. Without file or key
/// there is nothing to compare.
void check_image_tokens(const std::filesystem::path& folder, const std::string& key, int64_t features);

/// Warns, once per file, where the processor file of videos has an `fps` other than `fps`, which is used:
/// data.video_fps with its default value, so that the user may not know. Another one is somebody's choice.
void warn_if_frame_rate_differs(const std::filesystem::path& folder, double fps);

}  // namespace vlmtrain::models

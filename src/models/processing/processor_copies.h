#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::models {

enum class MediaRole { kImages, kVideos };

/// One of the places in which a checkpoint's settings of an image or video processor stand.
struct ProcessorCopy {
  std::string file;     ///< its name in the folder: "processor_config.json"
  std::string section;  ///< "image_processor"; empty: the whole file
  std::string name;     ///< what messages call it
  nlohmann::json settings;
};

/// Returns the copies in `folder`, the one that counts first, in the order of transformers 5.24
/// (image_processing_base.py, video_processing_utils.py): a section of processor_config.json that is not null, then
/// preprocessor_config.json; of videos their section, then video_preprocessor_config.json. Settings that are not an
/// object are returned as they are. Throws UserError (kBadData) for a file that is not JSON.
std::vector<ProcessorCopy> find_copies(const std::filesystem::path& folder, MediaRole role);

/// Returns the keys that two copies have both, and with different values. Keys that name classes do not count, nor do
/// sizes that are spelled in different ways.
std::vector<std::string> find_differing_keys(const nlohmann::json& a, const nlohmann::json& b);

/// Warns, once per folder and process, of copies that say something else than the first. REQUIRES: at least one.
void warn_about_conflicting_copies(const std::vector<ProcessorCopy>& copies);

}  // namespace vlmtrain::models

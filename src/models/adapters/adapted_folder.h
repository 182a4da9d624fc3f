#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>

namespace vlmtrain::models {

/// A base checkpoint overlaid with an adapter's files.
struct AdaptedFolder {
  nlohmann::json config;  ///< config.json of the model with the adapter
  /// Folder with the files of merge_auxiliary_files(). The base itself if they equal the base's
  /// files.
  std::filesystem::path path;
  std::filesystem::path chat_template_folder;  ///< ProcessorSettings::chat_template_folder for this model; may be empty
};

/// Calls `callback` with the overlaid folder, which is valid during the call only. In messages of
/// UserErrors thrown by `callback`, the original files are named. Throws UserError (kFailed) if no
/// temporary folder can be created.
void call_with_adapted_folder(const std::filesystem::path& base, const std::filesystem::path& adapter,
                              const std::function<void(const AdaptedFolder& folder)>& callback);

}  // namespace vlmtrain::models

#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>

namespace vlmtrain::models {

/// A base checkpoint overlaid with an adapter's files.
struct AdaptedFolder {
  nlohmann::json config;  ///< of the model with the adapter
  /// Has the files of merge_auxiliary_files(); the base itself if the adapter has no such files.
  std::filesystem::path path;
  std::filesystem::path template_folder;  ///< folder whose chat templates count
};

/// Calls `callback` with the overlaid folder, which is valid during the call only. Messages of
/// UserErrors thrown by `callback` are changed to name the original files. Throws UserError
/// (kFailed) if no temporary folder can be created.
void visit_adapted_folder(const std::filesystem::path& base, const std::filesystem::path& adapter,
                          const std::function<void(const AdaptedFolder& folder)>& callback);

}  // namespace vlmtrain::models

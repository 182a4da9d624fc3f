#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>

namespace vlmtrain::models {

/// A base checkpoint as an adapter with files of its own has it.
struct AdaptedFolder {
  nlohmann::json config;       ///< of the model with the adapter
  std::filesystem::path path;  ///< with the files of merge_auxiliary_files(); the base where the adapter has no others
  std::filesystem::path template_folder;  ///< whose chat templates count
};

/// Calls `callback` with the folder, which may be gone afterwards. UserErrors of `callback` name the files where they
/// lie. Throws UserError (kFailed) where no temporary folder can be made.
void visit_adapted_folder(const std::filesystem::path& base, const std::filesystem::path& adapter,
                          const std::function<void(const AdaptedFolder& folder)>& callback);

}  // namespace vlmtrain::models

#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

/// Returns config.json of a checkpoint folder. Throws UserError (kBadData), which describes a path
/// that is no checkpoint: a name on the Hugging Face Hub, a GGUF or weights file, the folder of a
/// run (with its newest checkpoint), the Hub's cache.
nlohmann::json read_model_config(const std::filesystem::path& folder);

/// Returns function(), which reads JSON files of the checkpoint in `folder`. Converts exceptions of
/// the JSON library, for values of unexpected types, to UserError (kBadData).
template <class Function>
auto rethrow_json_errors(const std::filesystem::path& folder, const Function& function) {
  try {
    return function();
  } catch (const nlohmann::json::exception& error) {
    throw data_error(
        "{}: config.json or a file next to it is invalid for this kind of checkpoint ({}); download it again",
        folder.string(), io::describe_json_exception(error));
  }
}

}  // namespace vlmtrain::models

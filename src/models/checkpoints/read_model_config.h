#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

/// Returns the content of config.json in a checkpoint folder. Throws UserError (kBadData) with
/// advice if `folder` is not a checkpoint but a name on the Hugging Face Hub, a GGUF or weights
/// file, the folder of a run, or a folder of the Hub's cache.
nlohmann::json read_model_config(const std::filesystem::path& folder);

/// Returns the result of `function`, which reads JSON files of the checkpoint in `folder`. Converts
/// exceptions of the JSON library, which it throws for values of unexpected types, to UserError
/// (kBadData).
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

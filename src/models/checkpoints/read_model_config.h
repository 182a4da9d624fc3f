#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json_reason.h"

namespace vlmtrain::models {

/// config.json of a checkpoint's folder. UserError (kBadData) that says what the path is instead where it is none: a
/// name on the Hugging Face Hub, a GGUF or weights file, a run's folder (its newest checkpoint is named), the Hub's
/// cache.
nlohmann::json read_model_config(const std::filesystem::path& folder);

/// What `function` makes of the JSON files of the checkpoint in `folder`. Where a value is not even of the kind that
/// the reader looks into, the JSON library says so, and this makes a data_error of it.
template <class Function>
auto rethrow_json_errors(const std::filesystem::path& folder, const Function& function) {
  try {
    return function();
  } catch (const nlohmann::json::exception& error) {
    throw data_error("{}: config.json or a file beside it is not what such a checkpoint has ({}); download it again",
                     folder.string(), io::describe_json_exception(error));
  }
}

}  // namespace vlmtrain::models

#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json_reason.h"

namespace vlmtrain::models {

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

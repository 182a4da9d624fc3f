#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json_reason.h"

namespace vlmtrain::models {

/// What `read` makes of the JSON files of the checkpoint in `folder`. Where a value is not even of the kind that the
/// reader looks into, the JSON library says so, and this makes a data_error of it.
template <class Read>
auto from_settings(const std::filesystem::path& folder, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw data_error("{}: config.json or a file beside it is not what such a checkpoint has ({}); download it again",
                     folder.string(), io::json_reason(error));
  }
}

}  // namespace vlmtrain::models

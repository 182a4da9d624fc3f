#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::io {

/// The record that a JSON value describes, its `line` left out. `fallback_id` is for those without an "id".
Record read_record(const nlohmann::json& value, const std::string& fallback_id);

}  // namespace vlmtrain::io

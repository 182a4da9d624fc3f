#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// The record that a JSON value describes, its `place` left out. `fallback_id` is for those without an "id"; relative
/// paths of images and videos start from `image_root`.
Record read_record(const nlohmann::json& value, const std::string& fallback_id,
                   const std::filesystem::path& image_root);

}  // namespace vlmtrain::io

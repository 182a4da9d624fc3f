#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Returns true where a list of a record's .json, under one of `keys`, has the file name of `path`.
bool lists_file(const nlohmann::json& fields, const std::array<const char*, 2>& keys, const std::string& path);

/// Puts the media of a tar, each {"path", "bytes"}, under the second of `keys`: in the order of the record's own list,
/// where that names these files and no others. A list of other names is of where the files once lay; one that names
/// some of them is data_error.
void set_media(nlohmann::json& fields, const std::array<const char*, 2>& keys, std::vector<nlohmann::json> media);

/// Puts masks under "masks": with what the record's own "mask" or "masks" says of each by its file name. Returns the
/// paths of those that are not used because the record has other masks.
std::vector<std::string> merge_masks(nlohmann::json& fields, const std::vector<nlohmann::json>& masks);

}  // namespace vlmtrain::io

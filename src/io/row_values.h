#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace vlmtrain::io {

/// A column of a row with a cell that cannot be read.
struct UnsupportedCell {
  std::string column;
  std::string type;
  std::string problem;  ///< a clause for messages, with what to do
};

/// Puts values in the place of texts that are JSON (SpecialCell::kJsonText) wherever they stand in a row, and null in
/// the place of cells that cannot be read (SpecialCell::kUnsupportedType, invalid JSON). Returns the latter, the first
/// of each column.
std::vector<UnsupportedCell> resolve_special_cells(nlohmann::json& row);

/// Returns true where a row that was read without bytes has to be read with them, because its fields are told apart by
/// their bytes: a list under "video", or under `video_column`, is one video where it consists of images.
bool needs_media_bytes(const nlohmann::json& row, const std::string& video_column);

}  // namespace vlmtrain::io

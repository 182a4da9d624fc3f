#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>

namespace vlmtrain::report {

/// Hands over the objects of a file of JSON lines, one at a time and in their order. A line that is none, or that a
/// kill cut off, is left out. Nothing where there is no file. Throws UserError (kBadData) where it is something else.
void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json& object)>& callback);

}  // namespace vlmtrain::report

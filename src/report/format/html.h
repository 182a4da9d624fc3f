#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/io/file.h"

namespace vlmtrain::report {

/// Returns the files of src/report/pages.
const io::Resources& resources();

/// Escapes text for HTML elements and quoted attributes.
std::string escape_html(std::string_view text);

/// Returns JSON for a <script type="application/json">; it cannot end the element. Invalid UTF-8 is
/// replaced.
std::string escape_script_json(const nlohmann::json& value);

/// Returns the page `name` with each {{key}} replaced by its value. Values are not searched for
/// keys. Throws InternalError for a key without value.
std::string fill_page(std::string_view name, const std::map<std::string, std::string, std::less<>>& values);

/// RFC 4648, section 4.
std::string base64_encode(std::string_view bytes);
/// Returns the bytes; empty if `text` is not base64.
std::string base64_decode(std::string_view text);

}  // namespace vlmtrain::report

#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/io/resources.h"

namespace vlmtrain::report {

/// The files of src/report/pages.
const io::Resources& resources();

/// Text as HTML shows it, in elements and in quoted attributes.
std::string escape_html(std::string_view text);

/// For a <script type="application/json">: nothing in it can end the element. Bytes that are not UTF-8 are replaced.
std::string escape_script_json(const nlohmann::json& value);

/// The page `name` with each {{key}} replaced by its value; values are not searched for keys. Throws InternalError for
/// a key without value.
std::string fill_page(std::string_view name, const std::map<std::string, std::string, std::less<>>& values);

/// RFC 4648, section 4.
std::string base64_encode(std::string_view bytes);
/// The bytes; empty where `text` is not base64.
std::string base64_decode(std::string_view text);

}  // namespace vlmtrain::report

#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/io/file.h"

namespace vlmtrain::report {

/// Returns the files of src/report/pages by name.
const io::EmbeddedResources& resources();

/// Returns the text escaped for HTML elements and quoted attributes. Control characters other than
/// line breaks become visible escapes (to_printable_lines()).
std::string escape_html(std::string_view text);
/// Same as escape_html(), but escapes line breaks too (to_printable()).
std::string escape_html_line(std::string_view text);

/// Returns the value as JSON for a <script type="application/json"> element; the JSON cannot end
/// the element. Invalid UTF-8 is replaced.
std::string escape_script_json(const nlohmann::json& value);

/// Returns the page `name` with each {{key}} replaced by its value. Values are not searched for
/// keys. Throws InternalError if the page does not exist or a key has no value.
std::string fill_page_template(std::string_view name, const std::map<std::string, std::string, std::less<>>& values);

}  // namespace vlmtrain::report

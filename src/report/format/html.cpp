#include "report/format/html.h"

#include <cstdint>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::report {

std::string escape_html(std::string_view text) {
  std::string html;
  for (const char character : to_printable_lines(text)) {
    switch (character) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += character;
    }
  }
  return html;
}

std::string escape_html_line(std::string_view text) {
  return escape_html(to_printable(text));
}

std::string escape_script_json(const nlohmann::json& value) {
  const std::string json = io::to_json_string(value);
  std::string escaped;
  escaped.reserve(json.size());
  for (const char character : json) {
    if (character == '<') {  // begins each sequence that could end or nest the element
      escaped += "\\u003c";
    } else {
      escaped += character;
    }
  }
  return escaped;
}

std::string fill_page_template(std::string_view name, const std::map<std::string, std::string, std::less<>>& values) {
  const auto resource = resources().find(name);
  VLMTRAIN_CHECK(resource != resources().end(), "page {} does not exist", name);
  std::string_view remaining = resource->second;
  std::string page;
  while (true) {
    const size_t placeholder_begin = remaining.find("{{");
    page += remaining.substr(0, placeholder_begin);
    if (placeholder_begin == std::string_view::npos) return page;
    const size_t placeholder_end = remaining.find("}}", placeholder_begin);
    VLMTRAIN_CHECK(placeholder_end != std::string_view::npos, "{}: a key has no closing braces", name);
    const std::string_view key = remaining.substr(placeholder_begin + 2, placeholder_end - placeholder_begin - 2);
    const auto value = values.find(key);
    VLMTRAIN_CHECK(value != values.end(), "{}: no value for {}", name, key);
    page += value->second;
    remaining.remove_prefix(placeholder_end + 2);
  }
}

}  // namespace vlmtrain::report

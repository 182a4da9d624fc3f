#include "report/format/html.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json_text.h"

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

std::string escape_script_json(const nlohmann::json& value) {
  const std::string json = io::to_json_string(value);
  std::string escaped;
  escaped.reserve(json.size());
  for (const char character : json) {
    if (character == '<') {
      escaped += "\\u003c";
    } else {
      escaped += character;
    }
  }
  return escaped;
}

std::string fill_page(std::string_view name, const std::map<std::string, std::string, std::less<>>& values) {
  const auto resource = resources().find(name);
  VLMTRAIN_CHECK(resource != resources().end(), "no page {}", name);
  std::string_view remaining = resource->second;
  std::string page;
  while (true) {
    const size_t open = remaining.find("{{");
    page += remaining.substr(0, open);
    if (open == std::string_view::npos) return page;
    const size_t close = remaining.find("}}", open);
    VLMTRAIN_CHECK(close != std::string_view::npos, "{}: a key without end", name);
    const std::string_view key = remaining.substr(open + 2, close - open - 2);
    const auto value = values.find(key);
    VLMTRAIN_CHECK(value != values.end(), "{}: no value for {}", name, key);
    page += value->second;
    remaining.remove_prefix(close + 2);
  }
}

}  // namespace vlmtrain::report

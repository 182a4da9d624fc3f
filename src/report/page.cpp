#include "report/page.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::report {

std::string html_escaped(std::string_view text) {
  std::string html;
  for (const char character : printable_lines(text)) {
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

std::string script_json(const nlohmann::json& value) {
  const std::string json = io::json_text(value);
  std::string safe;
  safe.reserve(json.size());
  for (const char character : json) {
    if (character == '<') {
      safe += "\\u003c";
    } else {
      safe += character;
    }
  }
  return safe;
}

std::string filled_page(std::string_view name, const std::map<std::string, std::string, std::less<>>& values) {
  const auto found = resources().find(name);
  VLMTRAIN_CHECK(found != resources().end(), "no page {}", name);
  std::string_view rest = found->second;
  std::string page;
  while (true) {
    const size_t open = rest.find("{{");
    page += rest.substr(0, open);
    if (open == std::string_view::npos) return page;
    const size_t close = rest.find("}}", open);
    VLMTRAIN_CHECK(close != std::string_view::npos, "{}: a key without end", name);
    const std::string_view key = rest.substr(open + 2, close - open - 2);
    const auto value = values.find(key);
    VLMTRAIN_CHECK(value != values.end(), "{}: no value for {}", name, key);
    page += value->second;
    rest.remove_prefix(close + 2);
  }
}

}  // namespace vlmtrain::report

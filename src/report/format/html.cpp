#include "report/format/html.h"

#include <cstdint>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
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

namespace {

constexpr std::string_view kBase64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    // Three bytes become four characters. The last group may have fewer bytes: a character without
    // any of their bits becomes padding.
    uint32_t group = 0;
    for (size_t k = i; k < i + 3; ++k)
      group = group << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0U);
    for (size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kBase64Alphabet[group >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

std::string base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char character : text) {
    const size_t value = kBase64Alphabet.find(character);
    if (value == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits & 0xff);
    }
  }
  return bytes;
}

}  // namespace vlmtrain::report

#include "text/jinja/text_literal.h"

#include <charconv>

#include "text/jinja/runtime/budget.h"
#include "text/unicode/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

char32_t parse_code_point(std::string_view digits, size_t num_digits, int base) {
  uint32_t code_point = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code_point, base);
  if (digits.size() != num_digits || error != std::errc{} || end != digits.data() + digits.size()) {
    throw evaluation_error("a text has an escape with too few digits");
  }
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000))
    throw evaluation_error("a text has an escape of no character");
  return code_point;
}

}  // namespace

std::string unescape_literal(std::string_view literal) {
  std::string text;
  for (size_t pos = 0; pos < literal.size();) {
    if (literal[pos] != '\\' || pos + 1 == literal.size()) {
      text += literal[pos++];
      continue;
    }
    const char letter = literal[pos + 1];
    pos += 2;
    constexpr std::string_view kEscapeLetters = "\\'\"abfnrtv";
    constexpr std::string_view kUnescapedCharacters = "\\'\"\a\b\f\n\r\t\v";
    const size_t escape_index = kEscapeLetters.find(letter);
    if (escape_index != std::string_view::npos) {
      text += kUnescapedCharacters[escape_index];
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      append_utf8(text, parse_code_point(literal.substr(pos, digits), digits, 16));
      pos += digits;
    } else if (letter >= '0' && letter <= '7') {
      size_t end = pos;
      while (end < literal.size() && end < pos + 2 && literal[end] >= '0' && literal[end] <= '7') ++end;
      append_utf8(text, parse_code_point(literal.substr(pos - 1, end - pos + 1), end - pos + 1, 8));
      pos = end;
    } else if (letter == 'N') {
      throw evaluation_error("a text has the escape \\N, which is not supported");
    } else if (letter != '\n') {
      text.append(1, '\\').append(1, letter);
    }
  }
  return text;
}

}  // namespace vlmtrain::text::jinja

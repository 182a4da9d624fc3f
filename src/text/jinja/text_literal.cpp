#include "text/jinja/text_literal.h"

#include <charconv>

#include "text/jinja/limits.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

char32_t code_of(std::string_view digits, size_t wanted, int base) {
  uint32_t code = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
  if (digits.size() != wanted || error != std::errc{} || end != digits.data() + digits.size()) {
    throw failure("a text has an escape with too few digits");
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) throw failure("a text has an escape of no character");
  return code;
}

}  // namespace

std::string read_literal(std::string_view written) {
  std::string text;
  for (size_t at = 0; at < written.size();) {
    if (written[at] != '\\' || at + 1 == written.size()) {
      text += written[at++];
      continue;
    }
    const char letter = written[at + 1];
    at += 2;
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kMeant = "\\'\"\a\b\f\n\r\t\v";
    const size_t known = kLetters.find(letter);
    if (known != std::string_view::npos) {
      text += kMeant[known];
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      append_utf8(text, code_of(written.substr(at, digits), digits, 16));
      at += digits;
    } else if (letter >= '0' && letter <= '7') {
      size_t end = at;
      while (end < written.size() && end < at + 2 && written[end] >= '0' && written[end] <= '7') ++end;
      append_utf8(text, code_of(written.substr(at - 1, end - at + 1), end - at + 1, 8));
      at = end;
    } else if (letter == 'N') {
      throw failure("a text has the escape \\N, which is not supported");
    } else if (letter != '\n') {
      text.append(1, '\\').append(1, letter);
    }
  }
  return text;
}

}  // namespace vlmtrain::text::jinja

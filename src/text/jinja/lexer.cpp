#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja/letters.h"
#include "text/jinja/limits.h"
#include "text/jinja/text_literal.h"
#include "text/utf8.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {
namespace {

using Kind = Token::Kind;

/// Line breaks are \n, and one at the end is dropped.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string_view without_space_at_end(std::string_view text) {
  const std::string_view inner = stripped(text);
  return inner.empty() ? inner : text.substr(0, static_cast<size_t>(inner.data() + inner.size() - text.data()));
}

bool is_decimal_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view source_name) : text_(normalized(source)), source_name_(source_name) {}

  std::vector<Token> run() {
    if (const auto invalid = find_invalid_utf8(text_)) {
      at_ = *invalid;
      fail("the template is not UTF-8");
    }
    while (at_ < text_.size()) read_data_and_tag();
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) { throw data_error("{}:{}: {}", source_name_, line(), message); }

  int line() {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(std::max(at_, counted_)), '\n'));
    counted_ = std::max(at_, counted_);
    return line_;
  }

  void add(Kind kind, std::string_view value) { tokens_.push_back({kind, std::string(value), line()}); }

  bool is_at(std::string_view what) const { return std::string_view(text_).substr(at_, what.size()) == what; }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts_line() const { return at_ == 0 || text_[at_ - 1] == '\n'; }

  void skip_space() {
    while (at_ < text_.size() && is_space(read_utf8(text_, at_).code_point)) at_ = next_character(text_, at_);
  }

  /// Adds the text [at_, tag), which a tag with `sign` ends.
  void add_data(size_t tag, char sign, bool ends_at_print) {
    std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') {
      data = without_space_at_end(data);
    } else if (sign != '+' && !ends_at_print) {
      // White space alone between a line's start and a tag is dropped.
      const size_t line_begin = data.rfind('\n') == std::string_view::npos ? 0 : data.rfind('\n') + 1;
      if ((line_begin > 0 || starts_line()) && stripped(data.substr(line_begin)).empty())
        data = data.substr(0, line_begin);
    }
    if (!data.empty()) add(Kind::kData, data);
  }

  /// The - or + after a tag's two letters.
  char sign_at(size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
  }

  void read_data_and_tag() {
    size_t tag = at_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == text_.size()) {
        add(Kind::kData, std::string_view(text_).substr(at_));
        at_ = text_.size();
        return;
      }
      if (text_[tag + 1] == '%' || text_[tag + 1] == '{' || text_[tag + 1] == '#') break;
      ++tag;
    }
    const char kind = text_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_data(tag, sign, kind == '{');
    at_ = tag;
    const size_t inside = tag + (sign != '\0' ? 3 : 2);
    if (kind == '#') {
      read_comment(inside);
    } else if (kind == '%' && skip_word_tag(inside, "raw", false)) {
      read_raw();
    } else {
      add(kind == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, "");
      at_ = inside;
      read_tag(kind == '{');
    }
  }

  void read_comment(size_t inside) {
    const size_t end = text_.find("#}", inside);
    if (end == std::string::npos) fail("a comment lacks its end, #}");
    const char sign = end > inside ? text_[end - 1] : '\0';
    at_ = end + 2;
    end_tag(sign, true);
  }

  /// What comes after a tag's end: nothing of it is kept after -, and no line break without a sign.
  void end_tag(char sign, bool trims) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims && peek() == '\n') {
      ++at_;
    }
  }

  /// Moves behind `word` and the tag's end if that is what stands at `inside`.
  bool skip_word_tag(size_t inside, std::string_view word, bool trims) {
    const size_t begin = at_;
    at_ = inside;
    skip_space();
    if (is_at(word)) {
      at_ += word.size();
      skip_space();
      const char sign = sign_at(at_);
      if (sign == '-' || (sign == '+' && trims)) ++at_;
      if (is_at("%}")) {
        at_ += 2;
        end_tag(sign, trims);
        return true;
      }
    }
    at_ = begin;
    return false;
  }

  void read_raw() {
    const size_t begin = at_;
    for (size_t tag = text_.find("{%", begin); tag != std::string::npos; tag = text_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      at_ = begin;
      if (!skip_word_tag(tag + (sign != '\0' ? 3 : 2), "endraw", true)) continue;
      const size_t after = std::exchange(at_, begin);
      add_data(tag, sign, false);
      at_ = after;
      return;
    }
    fail("a raw block lacks its end, {% endraw %}");
  }

  bool ends_print() {
    if (!is_at("}}") && !is_at("-}}")) return false;
    const char sign = peek();
    at_ += sign == '-' ? 3 : 2;
    add(Kind::kPrintEnd, "");
    end_tag(sign, false);
    return true;
  }

  bool ends_block() {
    if (!is_at("%}") && !is_at("-%}") && !is_at("+%}")) return false;
    const char sign = peek();
    at_ += sign == '%' ? 2 : 3;
    add(Kind::kBlockEnd, "");
    end_tag(sign, true);
    return true;
  }

  /// The tokens up to a tag's end.
  void read_tag(bool prints) {
    std::string open;  // brackets: what looks like an end within them is none
    while (at_ < text_.size()) {
      if (open.empty() && (prints ? ends_print() : ends_block())) return;
      const size_t before = at_;
      skip_space();
      if (at_ != before) continue;
      if (!read_number() && !read_name() && !read_text()) read_operator(open);
    }
    fail(prints ? "a {{ lacks its }}" : "a {% lacks its %}");
  }

  /// Where digits with single underscores between them end.
  template <class IsDigit>
  size_t end_of_digits(size_t at, IsDigit is_digit_here) const {
    const auto digit = [&](size_t place) { return place < text_.size() && is_digit_here(text_[place]); };
    while (digit(at) || (at < text_.size() && text_[at] == '_' && digit(at + 1))) ++at;
    return at;
  }

  bool read_number() {
    if (!is_decimal_digit(peek())) return false;
    if (read_float()) return true;
    size_t end = at_ + 1;
    const auto has_digits = [&](auto is_digit_here) {
      end = end_of_digits(at_ + 2, is_digit_here);
      return end > at_ + 2;
    };
    const char base = static_cast<char>(peek(1) | 0x20);
    const bool based =
        peek() == '0' &&
        ((base == 'x' && has_digits([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; })) ||
         (base == 'o' && has_digits([](char c) { return c >= '0' && c <= '7'; })) ||
         (base == 'b' && has_digits([](char c) { return c == '0' || c == '1'; })));
    if (!based)
      end = peek() == '0' ? end_of_digits(at_ + 1, [](char c) { return c == '0'; })
                          : end_of_digits(at_, is_decimal_digit);
    take(Kind::kInteger, end);
    return true;
  }

  bool read_float() {
    if (at_ > 0 && text_[at_ - 1] == '.') return false;
    const auto digit = [&](size_t place) { return place < text_.size() && is_decimal_digit(text_[place]); };
    const size_t whole_end = end_of_digits(at_, is_decimal_digit);
    size_t end = whole_end;
    if (end < text_.size() && text_[end] == '.' && digit(end + 1)) end = end_of_digits(end + 1, is_decimal_digit);
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (digit(end + 1 + sign)) end = end_of_digits(end + 1 + sign, is_decimal_digit);
    }
    if (end == whole_end) return false;
    take(Kind::kFloat, end);
    return true;
  }

  bool read_name() {
    size_t end = at_;
    while (end < text_.size() && is_word_character(read_utf8(text_, end).code_point)) end = next_character(text_, end);
    if (end == at_) return false;
    take(Kind::kName, end);
    return true;
  }

  bool read_text() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail("a text lacks its closing quote");
    try {
      add(Kind::kText, read_literal(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    } catch (const Failure& failure) {
      fail(failure.message);
    }
    at_ = end + 1;
    return true;
  }

  void read_operator(std::string& open) {
    constexpr std::array kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
                                       "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](const char* sign) { return is_at(sign); });
    if (found == kOperators.end()) {
      fail(fmt::format("\"{}\" is not understood here", text_.substr(at_, read_utf8(text_, at_).bytes)));
    }
    const std::string_view sign = *found;
    if (sign == "(" || sign == "[" || sign == "{") open += sign == "(" ? ')' : sign == "[" ? ']' : '}';
    if (sign == ")" || sign == "]" || sign == "}") {
      if (open.empty() || open.back() != sign[0]) fail(fmt::format("a \"{}\" that closes nothing", sign));
      open.pop_back();
    }
    take(Kind::kOperator, at_ + sign.size());
  }

  void take(Kind kind, size_t end) {
    add(kind, std::string_view(text_).substr(at_, end - at_));
    at_ = end;
  }

  std::string text_;
  std::string_view source_name_;
  size_t at_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view source_name) {
  return Lexer(source, source_name).run();
}

}  // namespace vlmtrain::text::jinja

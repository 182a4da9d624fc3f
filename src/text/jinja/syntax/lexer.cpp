#include "text/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::text::jinja {
namespace {

using Kind = Token::Kind;

/// Returns the source with \n as line break. Removes a line break at the end, because
/// keep_trailing_newline is off.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Returns `text` without white space at its end.
std::string_view strip_trailing_space(std::string_view text) {
  const std::string_view stripped_text = strip_white_space(text);
  return stripped_text.empty()
             ? stripped_text
             : text.substr(0, static_cast<size_t>(stripped_text.data() + stripped_text.size() - text.data()));
}

/// Returns whether the byte is an ASCII digit.
bool is_decimal_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

/// A lexer with the rules of Jinja2's lexer, configured as in transformers: trim_blocks and
/// lstrip_blocks.
class Lexer {
 public:
  Lexer(std::string_view source, std::string_view source_name)
      : text_(normalize_newlines(source)), source_name_(source_name) {}

  std::vector<Token> read_all_tokens() {
    if (const auto invalid = find_invalid_utf8(text_)) {
      pos_ = *invalid;
      throw_error("the template is not UTF-8");
    }
    while (pos_ < text_.size()) read_data_and_tag();
    add_token(Kind::kEof, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void throw_error(const std::string& message) {
    throw data_error("{}:{}: {}", source_name_, line(), message);
  }

  /// Returns the line of the cursor. Counts each byte once, so that a long template takes linear
  /// time.
  int line() {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_lines_end_),
                   text_.begin() + static_cast<std::ptrdiff_t>(std::max(pos_, counted_lines_end_)), '\n'));
    counted_lines_end_ = std::max(pos_, counted_lines_end_);
    return line_;
  }

  void add_token(Kind kind, std::string_view value) { tokens_.push_back({kind, std::string(value), line()}); }

  bool matches_at_cursor(std::string_view expected) const {
    return std::string_view(text_).substr(pos_, expected.size()) == expected;
  }
  char peek(size_t offset = 0) const { return pos_ + offset < text_.size() ? text_[pos_ + offset] : '\0'; }
  bool is_at_line_start() const { return pos_ == 0 || text_[pos_ - 1] == '\n'; }

  void skip_space() {
    while (pos_ < text_.size() && is_python_space(read_utf8(text_, pos_).code_point))
      pos_ = find_next_character(text_, pos_);
  }

  /// Adds the text from the cursor up to the tag at `tag_begin`, without the white space that the
  /// sign - or lstrip_blocks removes. `sign`: the - or + after the beginning of the tag, or 0.
  void add_data_token(size_t tag_begin, char sign, bool is_before_variable) {
    std::string_view data = std::string_view(text_).substr(pos_, tag_begin - pos_);
    if (sign == '-') {
      data = strip_trailing_space(data);
    } else if (sign != '+' && !is_before_variable) {
      // lstrip_blocks: removes white space between the beginning of a line and a tag.
      const size_t line_begin = data.rfind('\n') == std::string_view::npos ? 0 : data.rfind('\n') + 1;
      if ((line_begin > 0 || is_at_line_start()) && strip_white_space(data.substr(line_begin)).empty())
        data = data.substr(0, line_begin);
    }
    if (!data.empty()) add_token(Kind::kData, data);
  }

  /// Returns the sign - or + at `pos`, or 0.
  char peek_sign(size_t pos) const {
    return pos < text_.size() && (text_[pos] == '-' || text_[pos] == '+') ? text_[pos] : '\0';
  }

  /// Reads the text up to the next tag or comment, and the tag or comment.
  void read_data_and_tag() {
    size_t tag_begin = pos_;
    while (true) {
      tag_begin = text_.find('{', tag_begin);
      if (tag_begin == std::string::npos || tag_begin + 1 == text_.size()) {
        add_token(Kind::kData, std::string_view(text_).substr(pos_));
        pos_ = text_.size();
        return;
      }
      if (text_[tag_begin + 1] == '%' || text_[tag_begin + 1] == '{' || text_[tag_begin + 1] == '#') break;
      ++tag_begin;
    }
    const char tag_symbol = text_[tag_begin + 1];
    const char sign = peek_sign(tag_begin + 2);
    add_data_token(tag_begin, sign, tag_symbol == '{');
    pos_ = tag_begin;
    const size_t content_begin = tag_begin + (sign != '\0' ? 3 : 2);
    if (tag_symbol == '#') {
      skip_comment(content_begin);
    } else if (tag_symbol == '%' && try_skip_keyword_tag(content_begin, "raw", false)) {
      read_raw_block();
    } else {
      add_token(tag_symbol == '{' ? Kind::kVariableBegin : Kind::kBlockBegin, "");
      pos_ = content_begin;
      read_tag(tag_symbol == '{');
    }
  }

  void skip_comment(size_t content_begin) {
    const size_t end = text_.find("#}", content_begin);
    if (end == std::string::npos) throw_error("a comment lacks its end, #}");
    const char sign = end > content_begin ? text_[end - 1] : '\0';
    pos_ = end + 2;
    skip_space_after_tag(sign, true);
  }

  /// Skips white space after a tag that ends with the sign -. With `trims_newline` (trim_blocks),
  /// skips a line break after a tag without a sign.
  void skip_space_after_tag(char sign, bool trims_newline) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims_newline && peek() == '\n') {
      ++pos_;
    }
  }

  /// Moves past a tag that consists of `keyword` alone, such as `raw`. `content_begin` is the
  /// offset after `{%` and its sign. Returns whether there is such a tag.
  bool try_skip_keyword_tag(size_t content_begin, std::string_view keyword, bool trims_newline) {
    const size_t begin = pos_;
    pos_ = content_begin;
    skip_space();
    if (matches_at_cursor(keyword)) {
      pos_ += keyword.size();
      skip_space();
      const char sign = peek_sign(pos_);
      if (sign == '-' || (sign == '+' && trims_newline)) ++pos_;
      if (matches_at_cursor("%}")) {
        pos_ += 2;
        skip_space_after_tag(sign, trims_newline);
        return true;
      }
    }
    pos_ = begin;
    return false;
  }

  /// Reads the text of a raw block up to and including its endraw tag.
  void read_raw_block() {
    const size_t begin = pos_;
    for (size_t tag_begin = text_.find("{%", begin); tag_begin != std::string::npos;
         tag_begin = text_.find("{%", tag_begin + 1)) {
      const char sign = peek_sign(tag_begin + 2);
      pos_ = begin;
      if (!try_skip_keyword_tag(tag_begin + (sign != '\0' ? 3 : 2), "endraw", true)) continue;
      const size_t block_end = std::exchange(pos_, begin);
      add_data_token(tag_begin, sign, false);
      pos_ = block_end;
      return;
    }
    throw_error("a raw block lacks its end, {% endraw %}");
  }

  bool try_read_variable_end() {
    if (!matches_at_cursor("}}") && !matches_at_cursor("-}}")) return false;
    const char sign = peek();
    pos_ += sign == '-' ? 3 : 2;
    add_token(Kind::kVariableEnd, "");
    skip_space_after_tag(sign, false);
    return true;
  }

  bool try_read_block_end() {
    if (!matches_at_cursor("%}") && !matches_at_cursor("-%}") && !matches_at_cursor("+%}")) return false;
    const char sign = peek();
    pos_ += sign == '%' ? 2 : 3;
    add_token(Kind::kBlockEnd, "");
    skip_space_after_tag(sign, true);
    return true;
  }

  /// Reads the tokens of a tag, and its end. `is_variable_tag`: {{ }} instead of {% %}.
  void read_tag(bool is_variable_tag) {
    std::string expected_closing_brackets;  // inside brackets, }} and %} do not end the tag
    while (pos_ < text_.size()) {
      if (expected_closing_brackets.empty() && (is_variable_tag ? try_read_variable_end() : try_read_block_end()))
        return;
      const size_t begin = pos_;
      skip_space();
      if (pos_ != begin) continue;
      if (!try_read_number() && !try_read_name() && !try_read_string()) read_operator(expected_closing_brackets);
    }
    throw_error(is_variable_tag ? "a {{ lacks its }}" : "a {% lacks its %}");
  }

  /// Returns the end of the digits that begin at `pos`, with single underscores between them.
  template <class IsDigit>
  size_t find_digits_end(size_t pos, IsDigit is_digit_char) const {
    const auto is_digit_position = [&](size_t offset) { return offset < text_.size() && is_digit_char(text_[offset]); };
    while (is_digit_position(pos) || (pos < text_.size() && text_[pos] == '_' && is_digit_position(pos + 1))) ++pos;
    return pos;
  }

  /// Reads a number if one begins at the cursor. Returns whether it does.
  bool try_read_number() {
    if (!is_decimal_digit(peek())) return false;
    if (try_read_float()) return true;
    size_t end = pos_ + 1;
    const auto scan_digits = [&](auto is_digit_char) {
      end = find_digits_end(pos_ + 2, is_digit_char);
      return end > pos_ + 2;
    };
    const char base_letter = static_cast<char>(peek(1) | 0x20);
    const bool has_base_prefix =
        peek() == '0' && ((base_letter == 'x' &&
                           scan_digits([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; })) ||
                          (base_letter == 'o' && scan_digits([](char c) { return c >= '0' && c <= '7'; })) ||
                          (base_letter == 'b' && scan_digits([](char c) { return c == '0' || c == '1'; })));
    // As in Python, a decimal number other than 0 has no leading zeros.
    if (!has_base_prefix)
      end = peek() == '0' ? find_digits_end(pos_ + 1, [](char c) { return c == '0'; })
                          : find_digits_end(pos_, is_decimal_digit);
    consume_token(Kind::kInteger, end);
    return true;
  }

  bool try_read_float() {
    if (pos_ > 0 && text_[pos_ - 1] == '.') return false;  // `a.0.1` has two indices, not the number 0.1
    const auto is_digit_position = [&](size_t offset) {
      return offset < text_.size() && is_decimal_digit(text_[offset]);
    };
    const size_t integer_end = find_digits_end(pos_, is_decimal_digit);
    size_t end = integer_end;
    if (end < text_.size() && text_[end] == '.' && is_digit_position(end + 1))
      end = find_digits_end(end + 1, is_decimal_digit);
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign_length = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (is_digit_position(end + 1 + sign_length)) end = find_digits_end(end + 1 + sign_length, is_decimal_digit);
    }
    if (end == integer_end) return false;
    consume_token(Kind::kFloat, end);
    return true;
  }

  bool try_read_name() {
    size_t end = pos_;
    while (end < text_.size() && is_word_character(read_utf8(text_, end).code_point))
      end = find_next_character(text_, end);
    if (end == pos_) return false;
    consume_token(Kind::kName, end);
    return true;
  }

  bool try_read_string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) throw_error("a string lacks its closing quote");
    try {
      add_token(Kind::kString, unescape_literal(std::string_view(text_).substr(pos_ + 1, end - pos_ - 1)));
    } catch (const EvaluationError& error) {
      throw_error(error.message);
    }
    pos_ = end + 1;
    return true;
  }

  /// Reads an operator or bracket, and updates `expected_closing_brackets`.
  void read_operator(std::string& expected_closing_brackets) {
    // Longer operators precede their prefixes.
    constexpr std::array kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
                                       "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto match = std::find_if(kOperators.begin(), kOperators.end(),
                                    [&](const char* symbol) { return matches_at_cursor(symbol); });
    if (match == kOperators.end()) {
      throw_error(fmt::format("unexpected \"{}\"", text_.substr(pos_, read_utf8(text_, pos_).num_bytes)));
    }
    const std::string_view symbol = *match;
    if (symbol == "(" || symbol == "[" || symbol == "{")
      expected_closing_brackets += symbol == "(" ? ')' : symbol == "[" ? ']' : '}';
    if (symbol == ")" || symbol == "]" || symbol == "}") {
      if (expected_closing_brackets.empty() || expected_closing_brackets.back() != symbol[0])
        throw_error(fmt::format("unmatched \"{}\"", symbol));
      expected_closing_brackets.pop_back();
    }
    consume_token(Kind::kOperator, pos_ + symbol.size());
  }

  /// Adds the text up to `end` as a token, and moves there.
  void consume_token(Kind kind, size_t end) {
    add_token(kind, std::string_view(text_).substr(pos_, end - pos_));
    pos_ = end;
  }

  std::string text_;
  std::string_view source_name_;
  size_t pos_ = 0;
  size_t counted_lines_end_ = 0;  // end of the text whose line breaks `line_` includes
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view source_name) {
  return Lexer(source, source_name).read_all_tokens();
}

Token TokenStream::next() {
  Token token = current();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

void TokenStream::throw_error_at_line(int line, const std::string& message) const {
  throw data_error("{}:{}: {}", source_name_, line, message);
}

std::string TokenStream::describe_token(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEof:
      return "the end of the template";
    case Token::Kind::kBlockEnd:
      return "%}";
    case Token::Kind::kVariableEnd:
      return "}}";
    case Token::Kind::kString:
      return "a string";
    default:
      return fmt::format("\"{}\"", make_excerpt(token.value, 40));
  }
}

}  // namespace vlmtrain::text::jinja

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

/// A token of a template, with the names of Jinja2's lexer.
struct Token {
  enum class Kind {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEof
  };
  Kind kind;
  std::string value;  ///< of a string without quotes and escapes, of other tokens as written
  int line;
};

/// Returns the tokens of a template; the last is kEof. Removes white space around tags as
/// trim_blocks, lstrip_blocks and the signs - and + demand. Throws UserError (bad data) "FILE:LINE:
/// …" for malformed input.
std::vector<Token> tokenize(std::string_view source, std::string_view source_name);

/// A cursor over the tokens of a template. Errors are UserError (bad data) "FILE:LINE: …".
class TokenStream {
 public:
  TokenStream(std::string_view source, std::string source_name)
      : tokens_(tokenize(source, source_name)), source_name_(std::move(source_name)) {}

  /// Returns the token at the cursor, and the one after it.
  const Token& current() const { return tokens_[pos_]; }
  const Token& peek_next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  /// Returns the token at the cursor and advances, except past kEof.
  Token next();
  int line() const { return current().line; }

  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view symbol) const { return is(Token::Kind::kOperator) && current().value == symbol; }
  bool is_name(std::string_view name) const { return is(Token::Kind::kName) && current().value == name; }
  /// Each advances past this token. Returns whether it was at the cursor.
  bool skip_operator(std::string_view symbol) { return is_operator(symbol) && (next(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }

  /// Each advances past this token, or throws that `description` is missing.
  void expect_operator(std::string_view symbol) {
    if (!skip_operator(symbol)) fail(fmt::format("\"{}\" is missing before {}", symbol, describe(current())));
  }
  void expect(Token::Kind kind, std::string_view description) {
    if (!is(kind)) fail(fmt::format("{} is missing before {}", description, describe(current())));
    next();
  }
  std::string expect_name(std::string_view description) {
    if (!is(Token::Kind::kName)) fail(fmt::format("{} is missing before {}", description, describe(current())));
    return next().value;
  }

  /// Throws an error of the current line, or of `line`.
  [[noreturn]] void fail(const std::string& message) const { fail_on_line(line(), message); }
  [[noreturn]] void fail_on_line(int line, const std::string& message) const;
  /// Returns the name of a token in messages.
  static std::string describe(const Token& token);

 private:
  std::vector<Token> tokens_;
  std::string source_name_;
  size_t pos_ = 0;
};

}  // namespace vlmtrain::text::jinja

#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

/// A token of a template. The kinds have the names of Jinja2's lexer.
struct Token {
  enum class Kind {
    kData,  ///< text outside of tags
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
  /// The text of the token: of kString without quotes and escapes, empty for the begin and end of
  /// tags and kEof, else as written.
  std::string value;
  int line;  ///< counted from 1
};

/// Returns the tokens of a template; the last one is kEof. Removes white space around tags
/// according to trim_blocks, lstrip_blocks and the signs - and + of tags. `source_name` is FILE in
/// messages. Throws UserError (bad data) "FILE:LINE: …" for malformed input.
std::vector<Token> tokenize(std::string_view source, std::string_view source_name);

/// A cursor over the tokens of a template. All functions that throw throw UserError (bad data)
/// "FILE:LINE: …".
class TokenStream {
 public:
  TokenStream(std::string_view source, std::string source_name)
      : tokens_(tokenize(source, source_name)), source_name_(std::move(source_name)) {}

  /// Each returns a token: at the cursor, or after it (kEof at the end).
  const Token& current() const { return tokens_[pos_]; }
  const Token& peek_next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  /// Returns the token at the cursor and advances, except past kEof.
  Token next();
  int line() const { return current().line; }

  bool is_at_kind(Token::Kind kind) const { return current().kind == kind; }
  bool is_at_operator(std::string_view symbol) const {
    return is_at_kind(Token::Kind::kOperator) && current().value == symbol;
  }
  bool is_at_name(std::string_view name) const { return is_at_kind(Token::Kind::kName) && current().value == name; }
  /// Each advances past this token if it is at the cursor. Returns whether it was.
  bool skip_if_operator(std::string_view symbol) { return is_at_operator(symbol) && (next(), true); }
  bool skip_if_name(std::string_view name) { return is_at_name(name) && (next(), true); }

  /// Each advances past this token. Throws if it is not at the cursor; `description` names it in
  /// the message. expect_name() returns the name.
  void expect_operator(std::string_view symbol) {
    if (!skip_if_operator(symbol))
      throw_error(fmt::format("\"{}\" is missing before {}", symbol, describe_token(current())));
  }
  void expect_kind(Token::Kind kind, std::string_view description) {
    if (!is_at_kind(kind)) throw_error(fmt::format("{} is missing before {}", description, describe_token(current())));
    next();
  }
  std::string expect_name(std::string_view description) {
    if (!is_at_kind(Token::Kind::kName))
      throw_error(fmt::format("{} is missing before {}", description, describe_token(current())));
    return next().value;
  }

  /// Each throws UserError (bad data) with `message` and the current line or `line`.
  [[noreturn]] void throw_error(const std::string& message) const { throw_error_at_line(line(), message); }
  [[noreturn]] void throw_error_at_line(int line, const std::string& message) const;
  /// Returns a description of `token` for messages.
  static std::string describe_token(const Token& token);

 private:
  std::vector<Token> tokens_;
  std::string source_name_;
  size_t pos_ = 0;
};

}  // namespace vlmtrain::text::jinja

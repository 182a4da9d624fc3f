#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/syntax/lexer.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

/// The tokens of a template, one after the other.
class TokenStream {
 public:
  TokenStream(std::string_view source, std::string source_name)
      : tokens_(tokenize(source, source_name)), source_name_(std::move(source_name)) {}

  const Token& current() const { return tokens_[pos_]; }
  const Token& peek_next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token next();
  int line() const { return current().line; }

  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view symbol) const { return is(Token::Kind::kOperator) && current().value == symbol; }
  bool is_name(std::string_view name) const { return is(Token::Kind::kName) && current().value == name; }
  bool skip_operator(std::string_view symbol) { return is_operator(symbol) && (next(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }

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

  [[noreturn]] void fail(const std::string& message) const { fail_on_line(line(), message); }
  [[noreturn]] void fail_on_line(int line, const std::string& message) const;
  /// What a token is called in an error.
  static std::string describe(const Token& token);

 private:
  std::vector<Token> tokens_;
  std::string source_name_;
  size_t pos_ = 0;
};

}  // namespace vlmtrain::text::jinja

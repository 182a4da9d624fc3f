#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/lexer.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

/// The tokens of a template, one after the other.
class TokenStream {
 public:
  TokenStream(std::string_view source, std::string source_name)
      : tokens_(tokenize(source, source_name)), source_name_(std::move(source_name)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next();
  int line() const { return current().line; }

  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view sign) const { return is(Token::Kind::kOperator) && current().value == sign; }
  bool is_name(std::string_view name) const { return is(Token::Kind::kName) && current().value == name; }
  bool skip_operator(std::string_view sign) { return is_operator(sign) && (next(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }

  void expect_operator(std::string_view sign) {
    if (!skip_operator(sign)) fail(fmt::format("\"{}\" is missing before {}", sign, describe(current())));
  }
  void expect(Token::Kind kind, std::string_view what) {
    if (!is(kind)) fail(fmt::format("{} is missing before {}", what, describe(current())));
    next();
  }
  std::string expect_name(std::string_view what) {
    if (!is(Token::Kind::kName)) fail(fmt::format("{} is missing before {}", what, describe(current())));
    return next().value;
  }

  [[noreturn]] void fail(const std::string& message) const { fail_at(line(), message); }
  [[noreturn]] void fail_at(int line, const std::string& message) const;
  /// What a token is called in an error.
  static std::string describe(const Token& token);

 private:
  std::vector<Token> tokens_;
  std::string source_name_;
  size_t at_ = 0;
};

}  // namespace vlmtrain::text::jinja

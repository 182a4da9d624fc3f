#include "text/jinja/token_stream.h"

#include "vlmtrain/base/printable.h"

namespace vlmtrain::text::jinja {

Token TokenStream::next() {
  Token token = current();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

void TokenStream::fail_on_line(int line, const std::string& message) const {
  throw data_error("{}:{}: {}", source_name_, line, message);
}

std::string TokenStream::describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEof:
      return "the template's end";
    case Token::Kind::kBlockEnd:
      return "%}";
    case Token::Kind::kVariableEnd:
      return "}}";
    case Token::Kind::kString:
      return "a text";
    default:
      return fmt::format("\"{}\"", make_excerpt(token.value, 40));
  }
}

}  // namespace vlmtrain::text::jinja

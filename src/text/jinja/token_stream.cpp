#include "text/jinja/token_stream.h"

#include "vlmtrain/base/printable.h"

namespace vlmtrain::text::jinja {

Token TokenStream::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

void TokenStream::fail_at(int line, const std::string& message) const {
  throw data_error("{}:{}: {}", source_name_, line, message);
}

std::string TokenStream::describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the template's end";
    case Token::Kind::kBlockEnd:
      return "%}";
    case Token::Kind::kPrintEnd:
      return "}}";
    case Token::Kind::kText:
      return "a text";
    default:
      return fmt::format("\"{}\"", excerpt(token.value, 40));
  }
}

}  // namespace vlmtrain::text::jinja

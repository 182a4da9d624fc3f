#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::text::jinja {

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
  std::string value;  ///< of a text what it stands for, of all others as written
  int line;
};

/// The tokens of a template, white space around tags taken as trim_blocks, lstrip_blocks, - and + have it; kEof is the
/// last. Throws UserError (bad data) "FILE:LINE: …".
std::vector<Token> tokenize(std::string_view source, std::string_view source_name);

}  // namespace vlmtrain::text::jinja

#include "vlmtrain/text/read_tokenizer.h"

#include <fstream>
#include <iterator>

#include "text/tokenizer/external_tokens.h"
#include "text/tokenizer_settings.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"

namespace vlmtrain::text {

std::string read_tokenizer_json(const std::filesystem::path& tokenizer_json) {
  if (const auto kind = describe_non_regular_file(tokenizer_json); !kind.empty()) {
    throw data_error("The tokenizer {} is {}; a file is wanted here", tokenizer_json.string(), kind);
  }
  std::ifstream file(tokenizer_json, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw data_error("The tokenizer {} cannot be read; a checkpoint folder must hold a tokenizer.json",
                     tokenizer_json.string());
  }
  return content;
}

Tokenizer read_tokenizer(const std::filesystem::path& folder, std::span<const std::string> extra_special_tokens) {
  const auto file = folder / "tokenizer.json";
  const std::string content = read_tokenizer_json(file);
  ExternalTokens external_tokens = read_external_tokens(folder);
  for (const std::string& token : extra_special_tokens) {
    external_tokens.tokens.push_back({.content = token, .source = (folder / "config.json").string()});
  }
  Tokenizer tokenizer = Tokenizer::from_json_with_tokens(content, file.string(), external_tokens.tokens);
  check_tokenizer_settings(folder, tokenizer, external_tokens);
  return tokenizer;
}

}  // namespace vlmtrain::text

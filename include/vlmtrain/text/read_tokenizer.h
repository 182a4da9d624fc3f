#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Returns the tokenizer of a checkpoint folder as transformers 5.24 loads it: tokenizer.json, then
/// the tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json, then
/// `extra_special_tokens`.
///
/// Throws UserError (bad data) for the errors of Tokenizer::from_file(), if a file gives a token a
/// different id than transformers would, and if split_special_tokens is true. Logs a warning, once
/// per process, for each setting of tokenizer_config.json that is not supported and may change
/// tokens, and for tokens that transformers reads differently.
Tokenizer read_tokenizer(const std::filesystem::path& folder, std::span<const std::string> extra_special_tokens = {});

/// Returns the content of a tokenizer.json. Throws UserError (bad data) if the file cannot be read.
std::string read_tokenizer_json(const std::filesystem::path& tokenizer_json);

/// The result of add_token(): the new content of tokenizer.json and the id of the token.
struct AddTokenResult {
  std::string json;
  int64_t id;
};

/// Adds `token` to the list `added_tokens` of `json`, the content of a tokenizer.json. The token
/// gets the next id, is not special (so that decoding keeps it) and not normalized. Returns `json`
/// unchanged if `token` already encodes to a single token. All other text of `json` is unchanged.
/// `source_name` names the file in messages. Throws UserError (bad data) for the errors of
/// Tokenizer::from_json().
AddTokenResult add_token(const std::string& json, const std::string& token, const std::string& source_name);

}  // namespace vlmtrain::text

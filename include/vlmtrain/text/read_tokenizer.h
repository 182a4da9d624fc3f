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
/// Throws UserError (kBadData) as Tokenizer::from_file, if a file gives a token another id than
/// transformers would, and if split_special_tokens is true. Logs a warning, once per process, for
/// each setting of tokenizer_config.json that is not supported and may change tokens, and for
/// tokens that transformers reads differently.
Tokenizer read_tokenizer(const std::filesystem::path& folder, std::span<const std::string> extra_special_tokens = {});

/// Returns the content of a tokenizer.json. Throws UserError (kBadData) if it cannot be read.
std::string read_tokenizer_json(const std::filesystem::path& tokenizer_json);

/// The content of a tokenizer.json, and the id of a token in it.
struct AddTokenResult {
  std::string json;
  int64_t id;
};

/// Adds `token` to the added tokens of a tokenizer.json, with the next id, neither special (so that
/// decoding keeps it) nor normalized. Returns `json` unchanged if encoding `token` already gives
/// this one token; otherwise the rest of the text is unchanged. Throws UserError (kBadData) as
/// Tokenizer::from_json.
AddTokenResult add_token(const std::string& json, const std::string& token, const std::string& source_name);

}  // namespace vlmtrain::text

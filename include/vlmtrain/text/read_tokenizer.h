#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Reads the tokenizer of a checkpoint's folder as transformers 5.24 does: tokenizer.json, and the tokens that
/// tokenizer_config.json, special_tokens_map.json and added_tokens.json name beyond it, `extra_special_tokens` after
/// them. Throws UserError (kBadData) as Tokenizer::from_file, where a file gives a token another id than transformers,
/// and for tokenizer_config.json's split_special_tokens.
///
/// Logs a warning, once a process, for each setting of tokenizer_config.json that is not read and may change tokens,
/// and for tokens that transformers reads otherwise.
Tokenizer read_tokenizer(const std::filesystem::path& folder, std::span<const std::string> extra_special_tokens = {});

/// Returns the content of a tokenizer.json. Throws UserError (kBadData) where it cannot be read.
std::string read_tokenizer_json(const std::filesystem::path& tokenizer_json);

}  // namespace vlmtrain::text

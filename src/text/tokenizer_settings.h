#pragma once

#include <filesystem>

#include "text/tokenizer/external_tokens.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {

/// Holds what the files next to tokenizer.json say against `tokenizer`, which was read of `folder`. Throws UserError
/// (kBadData) for split_special_tokens, with which no token of an image is one; logs a warning for settings that are
/// not read and for tokens that transformers reads otherwise.
void check_tokenizer_settings(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                              const ExternalTokens& external_tokens);

}  // namespace vlmtrain::text

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::text {

/// A token that a checkpoint names outside tokenizer.json, with the properties of an added token there.
struct ExternalToken {
  std::string content;
  std::optional<int64_t> id{};  ///< that the file gives it; nothing: the next one
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = true;
  /// Whether its properties win over those that tokenizer.json gives the same token.
  bool overrides = false;
  std::string source{};  ///< for messages: file and key
};

/// What the files next to tokenizer.json say about tokens.
struct ExternalTokens {
  std::vector<ExternalToken> tokens;  ///< in the order in which they get their ids
  /// Tokens by the names that templates have for them, such as bos_token and image_token.
  std::vector<std::pair<std::string, std::string>> named_tokens;
  /// Named by files that are not read next to others that are.
  std::vector<ExternalToken> ignored_tokens;
  bool has_decoder = false;  ///< tokenizer_config.json has added_tokens_decoder
};

/// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json of `folder` as transformers 5.24 does
/// (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__): added_tokens_decoder by ascending ids, or
/// without it added_tokens.json, then named tokens, then extra_special_tokens (additional_special_tokens without it).
/// special_tokens_map.json is read only without added_tokens_decoder, and wins then. Files may be missing. Throws
/// UserError (kBadData) that names file and key for values of another type.
ExternalTokens read_external_tokens(const std::filesystem::path& folder);

}  // namespace vlmtrain::text

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::text {

/// A token of a file other than tokenizer.json, with the properties of an added token.
struct ExternalToken {
  std::string content;
  std::optional<int64_t> id{};  ///< from the file; nothing: the next free id
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = true;
  /// Replaces the properties of the same token in tokenizer.json.
  bool overrides = false;
  std::string source{};  ///< for messages: file and key
};

/// The tokens of the files next to tokenizer.json.
struct ExternalTokens {
  std::vector<ExternalToken> tokens;  ///< in the order of their ids
  /// Names of tokens in templates, such as bos_token and image_token, with the tokens.
  std::vector<std::pair<std::string, std::string>> named_tokens;
  /// Tokens of files that transformers ignores because of another file.
  std::vector<ExternalToken> ignored_tokens;
  bool has_decoder = false;  ///< tokenizer_config.json has added_tokens_decoder
};

/// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json of `folder` as
/// transformers 5.24 (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__). The
/// order is added_tokens_decoder by ascending id (without it added_tokens.json), named tokens,
/// extra_special_tokens (without it additional_special_tokens). special_tokens_map.json is read
/// only without added_tokens_decoder, and takes precedence then. Files may be missing. Throws
/// UserError (kBadData) that names file and key for values of another type.
ExternalTokens read_external_tokens(const std::filesystem::path& folder);

/// Returns whether the file `path` exists. Throws UserError (kBadData) if `path` exists but is no
/// readable file, such as a broken link into a download cache, which must not count as a missing
/// file.
bool is_file(const std::filesystem::path& path);

/// Logs a warning, unless this process has logged the same message; a run reads each file several
/// times. Thread-safe.
void warn_once(const std::string& message);

}  // namespace vlmtrain::text

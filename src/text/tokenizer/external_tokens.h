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
  std::optional<int64_t> id{};  ///< id in the file; nothing: the next free id
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = true;
  /// Whether these properties replace the properties of the same token in tokenizer.json.
  bool overrides_tokenizer_json = false;
  std::string source{};  ///< file and key, for messages
};

/// The tokens of the files next to tokenizer.json.
struct ExternalTokens {
  std::vector<ExternalToken> tokens;  ///< in the order of their ids
  /// Pairs of a template variable, such as bos_token or image_token, and its token.
  std::vector<std::pair<std::string, std::string>> named_tokens;
  /// Tokens that transformers ignores because another file or key takes precedence.
  std::vector<ExternalToken> ignored_tokens;
  bool has_added_tokens_decoder = false;  ///< whether tokenizer_config.json has added_tokens_decoder
};

/// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json of `folder` as
/// transformers 5.24 does (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__).
/// The order of the tokens: added_tokens_decoder by ascending id, or added_tokens.json if that key
/// is absent; named tokens; extra_special_tokens, or additional_special_tokens if that key is
/// absent. special_tokens_map.json is used only if added_tokens_decoder is absent; it then takes
/// precedence over tokenizer_config.json. Missing files are skipped. Throws UserError (kBadData)
/// that names file and key for a value of a wrong type.
ExternalTokens read_external_tokens(const std::filesystem::path& folder);

/// Returns whether the file `path` exists. Throws UserError (kBadData) if `path` exists but is not
/// a regular file. A broken link into a download cache also throws, because it must not count as a
/// missing file.
bool is_file(const std::filesystem::path& path);

/// Logs a warning once per process and message, because a run reads each file several times.
/// Thread-safe.
void warn_once(const std::string& message);

}  // namespace vlmtrain::text

#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::text {

class Tokenizer;
struct TemplateSettings;

/// The Jinja source of a chat template, and its origin.
struct TemplateSource {
  std::string jinja_source;            ///< text of the template
  std::string name;                    ///< for messages: a file, or the name of a built-in template
  bool is_checkpoint_default = false;  ///< whether transformers uses this template for the checkpoint
  /// The token that ends an answer in a built-in template; empty if the template does not write
  /// one. data() is null for all other templates. Refers to static storage.
  std::string_view end_of_turn_token{};
};

/// Returns the names of the built-in templates, in alphabetical order. Model families whose
/// checkpoints have no template were trained with these. The templates write an image as `<image>`
/// and a video as `<video>`; ChatTemplate inserts the family's markup.
std::vector<std::string_view> get_builtin_template_names();

/// Returns a built-in template. Throws UserError (usage) with a list of the names if `name` is
/// unknown.
TemplateSource get_builtin_template(std::string_view name);

/// Returns the chat templates of a checkpoint folder by name. The order of precedence is the same
/// as in transformers 5.24: processor_config.json, chat_template.json, chat_template.jinja with
/// additional_chat_templates/NAME.jinja, then tokenizer_config.json. The key `chat_template` of the
/// JSON files is a string, a list of {name, template}, or an object of names and templates. A
/// single template is named "default". Logs a warning if several files have different default
/// templates. Throws UserError (bad data) for malformed files.
std::map<std::string, TemplateSource> load_checkpoint_templates(const std::filesystem::path& folder);

/// Returns the template that the config key data.chat_template selects with the value `name`.
/// "auto": the checkpoint's default, or the built-in template `fallback` if the checkpoint has no
/// template. Otherwise one of `checkpoint_templates`, a built-in template, or a file that ends with
/// .jinja. Throws UserError (usage) with a list of the names if there is no such template, or if
/// "auto" is ambiguous.
TemplateSource choose_template(const std::string& name,
                               const std::map<std::string, TemplateSource>& checkpoint_templates,
                               std::string_view fallback);

/// Fills special_tokens_map and eos_tokens of `settings` from tokenizer_config.json and
/// special_tokens_map.json, as transformers reads them, and from eos_token_id of
/// generation_config.json and config.json. Missing files are skipped. Throws UserError (bad data)
/// for malformed files.
void read_special_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings);

/// Returns the eos_token_id of a config.json or generation_config.json: one integer or a list. The
/// result is empty if the key is absent or null. `source` names the file in messages. Throws
/// UserError (bad data) for other values.
std::vector<int64_t> parse_eos_token_ids(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::text

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
  std::string jinja;
  std::string name;                    ///< for messages: a file, or the name of a built-in template
  bool is_checkpoint_default = false;  ///< is the template that loaders of the checkpoint use
  std::string_view end_of_turn{};      ///< of a built-in template: the token after an answer
};

/// Returns the names of the built-in templates, in alphabetical order. Families without a template
/// of their own were trained with these. They write an image as `<image>` and a video as `<video>`;
/// ChatTemplate inserts the family's markup.
std::vector<std::string_view> builtin_template_names();

/// Returns a built-in template. Throws UserError (usage) that lists the names if `name` is unknown.
TemplateSource find_builtin_template(std::string_view name);

/// Returns the chat templates of a checkpoint folder by name. The order of precedence is that of
/// the processors of transformers 5.24: processor_config.json, chat_template.json,
/// chat_template.jinja with additional_chat_templates/NAME.jinja, and then as its tokenizers
/// tokenizer_config.json (key `chat_template`: a text, or a list of {name, template}). A single
/// template is named "default". Logs a warning for a default template that is not the one returned.
/// Throws UserError (bad data) for malformed files.
std::map<std::string, TemplateSource> load_checkpoint_templates(const std::filesystem::path& folder);

/// Returns the template that data.chat_template = `name` selects. "auto": the checkpoint's default,
/// or the built-in template `fallback` if the checkpoint has no template. Otherwise one of
/// `checkpoint_templates`, a built-in template, or a file that ends with .jinja. Throws UserError
/// (usage) that lists the names.
TemplateSource choose_template(const std::string& name,
                               const std::map<std::string, TemplateSource>& checkpoint_templates,
                               std::string_view fallback);

/// Fills special_tokens and end_tokens of `settings` from tokenizer_config.json and
/// special_tokens_map.json, as transformers reads them, and from eos_token_id of
/// generation_config.json and config.json. Files may be missing.
void read_special_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings);

/// Returns the eos_token_id of a config.json or generation_config.json: one number or a list, empty
/// if absent or null. `source` names the file in messages. Throws UserError (kBadData) for other
/// values.
std::vector<int64_t> parse_eos_token_ids(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::text

#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// The chat templates that a checkpoint's folder has, by name, as the processors of transformers 5.24 find them: first
/// processor_config.json, then chat_template.json, then chat_template.jinja with additional_chat_templates/NAME.jinja,
/// and as its tokenizers do, tokenizer_config.json (under `chat_template`: a text, or a list of {name, template}). A
/// single one is "default". Logs a warning for a default that differs from the one that is taken. Throws UserError (bad
/// data) for files that are none.
std::map<std::string, TemplateSource> load_checkpoint_templates(const std::filesystem::path& folder);

/// What data.chat_template says of the checkpoint's `checkpoint_templates` templates: "auto" is its default, or where
/// it has none `fallback` of the table; else a name of its own, a name of the table, or a file that ends with .jinja.
/// Throws UserError (usage) that lists the names.
TemplateSource choose_template(const std::string& name,
                               const std::map<std::string, TemplateSource>& checkpoint_templates,
                               std::string_view fallback);

/// Fills special_tokens and end_tokens of `settings`: what tokenizer_config.json and special_tokens_map.json name, as
/// transformers reads them, and the eos_token_id of generation_config.json and config.json. Files may be missing.
void read_special_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings);

/// The eos_token_id of a config.json or generation_config.json, called `source`: one number or a list of them; none
/// where it is absent or null. Throws UserError (kBadData) where it is something else.
std::vector<int64_t> parse_eos_token_ids(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::text

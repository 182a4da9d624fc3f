#include "vlmtrain/text/checkpoint_templates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "text/is_file.h"
#include "text/tokenizer/external_tokens.h"
#include "text/warn_once.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultName = "default";
constexpr const char* kTemplateKey = "chat_template";
constexpr const char* kTemplateFile = "chat_template.json";
constexpr const char* kJinjaFile = "chat_template.jinja";
constexpr const char* kAdditionalTemplates = "additional_chat_templates";

TemplateSource make_template_source(std::string jinja, std::string name) {
  return {.jinja = std::move(jinja), .name = std::move(name)};
}

using Templates = std::map<std::string, TemplateSource>;

Templates read_folder_templates(const fs::path& folder) {
  Templates templates;
  const auto add = [&templates](const std::string& name, const fs::path& file) {
    templates.insert_or_assign(name, make_template_source(io::read_file(file), file.string()));
  };
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / kAdditionalTemplates, error)) {
    if (entry.path().extension() == ".jinja" && is_file(entry.path())) add(entry.path().stem().string(), entry.path());
  }
  if (is_file(folder / kJinjaFile)) add(kDefaultName, folder / kJinjaFile);
  return templates;
}

/// Of a value under "chat_template": a text, a list of {name, template}, or names with their texts.
std::map<std::string, TemplateSource> parse_templates(const nlohmann::json& json, const fs::path& path) {
  std::map<std::string, TemplateSource> templates;
  const std::string source = path.string();
  if (!json.is_object()) throw data_error("{}: is {}, no object", source, io::make_json_excerpt(json));
  const auto value = json.value(kTemplateKey, nlohmann::json());
  const auto add = [&](const std::string& name, const nlohmann::json& text) {
    if (!text.is_string()) throw data_error("{}: {} \"{}\" is no text", source, kTemplateKey, name);
    const std::string display_name = name == kDefaultName ? source : fmt::format("{} ({})", source, name);
    templates.insert_or_assign(name, make_template_source(text.get<std::string>(), display_name));
  };
  if (value.is_null()) return templates;
  if (value.is_array()) {
    for (const auto& entry : value) {
      add(io::get<std::string>(entry, "name", source), entry.value("template", nlohmann::json()));
    }
  } else if (value.is_object()) {
    for (const auto& [name, text] : value.items()) add(name, text);
  } else {
    add(kDefaultName, value);
  }
  return templates;
}

/// Of one of the JSON files; without any where the file is missing.
Templates read_template_file(const fs::path& file) {
  return is_file(file) ? parse_templates(io::read_json(file), file) : Templates();
}

/// Templates that whoever asks for the default does not get although they stand where the default is looked for.
void warn_about_unused(const Templates& selected, const std::vector<Templates>& sources) {
  const auto default_template = selected.find(kDefaultName);
  if (default_template == selected.end()) return;
  for (const Templates& source : sources) {
    const auto unused = source.find(kDefaultName);
    if (unused == source.end() || default_template->second.jinja == unused->second.jinja) continue;
    warn_once(fmt::format(
        "{}: differs from the chat template in {}, which is taken, as transformers' processors do; remove one of them",
        unused->second.name, default_template->second.name));
  }
}

/// What a template says does not hang on a slip in these files; who generates answers is told of it.
std::vector<int64_t> parse_eos_ids_or_empty(const nlohmann::json& config, const fs::path& file) {
  try {
    return parse_eos_token_ids(config, file.string());
  } catch (const UserError&) {
    return {};
  }
}

void add_end_tokens(const fs::path& file, const Tokenizer& tokenizer, std::vector<std::string>& tokens) {
  if (!is_file(file)) return;
  const auto json = io::read_json(file);
  for (const auto* config :
       {&json, json.is_object() && json.contains("text_config") ? &json["text_config"] : nullptr}) {
    if (config == nullptr) continue;
    for (const int64_t id : parse_eos_ids_or_empty(*config, file)) {
      std::string token(tokenizer.id_to_token(id));
      if (!token.empty() && std::ranges::count(tokens, token) == 0) tokens.push_back(std::move(token));
    }
  }
}

}  // namespace

std::vector<int64_t> parse_eos_token_ids(const nlohmann::json& config, const std::string& source) {
  const char* const key = "eos_token_id";
  const bool has_value = config.is_object() && config.contains(key) && !config[key].is_null();
  if (has_value && config[key].is_array()) return io::get<std::vector<int64_t>>(config, key, source);
  if (config.is_object() && !has_value) return {};
  return {io::get<int64_t>(config, key, source)};
}

std::map<std::string, TemplateSource> load_checkpoint_templates(const fs::path& folder) {
  // As ProcessorMixin.get_processor_dict of transformers 5.24 has it; a tokenizer alone begins with the third.
  std::vector<Templates> sources;
  sources.push_back(read_template_file(folder / "processor_config.json"));
  sources.push_back(read_template_file(folder / kTemplateFile));
  if (sources.back().empty() && is_file(folder / kTemplateFile)) {
    throw data_error("{}: has no {}; fetch the file again", (folder / kTemplateFile).string(), kTemplateKey);
  }
  sources.push_back(read_folder_templates(folder));
  const auto first_source = std::ranges::find_if(sources, [](const Templates& source) { return !source.empty(); });
  Templates templates =
      first_source != sources.end() ? *first_source : read_template_file(folder / "tokenizer_config.json");
  warn_about_unused(templates, sources);
  if (first_source != sources.end()) {
    // Others by name are there too, for data.chat_template.
    for (const Templates& source : sources) templates.insert(source.begin(), source.end());
  }
  // One alone is the default whatever its name.
  if (templates.size() == 1 && !templates.contains(kDefaultName)) {
    auto single_template = templates.extract(templates.begin());
    single_template.key() = kDefaultName;
    templates.insert(std::move(single_template));
  }
  if (const auto default_template = templates.find(kDefaultName); default_template != templates.end())
    default_template->second.is_checkpoint_default = true;
  return templates;
}

TemplateSource choose_template(const std::string& name,
                               const std::map<std::string, TemplateSource>& checkpoint_templates,
                               std::string_view fallback) {
  const auto checkpoint_template = checkpoint_templates.find(name == "auto" ? kDefaultName : name);
  if (checkpoint_template != checkpoint_templates.end()) return checkpoint_template->second;
  if (name == "auto") {
    if (checkpoint_templates.empty()) return find_builtin_template(fallback);
    std::vector<std::string> names;
    names.reserve(checkpoint_templates.size());
    for (const auto& [template_name, source] : checkpoint_templates) names.push_back(template_name);
    throw usage_error(
        "data.chat_template: the checkpoint has several chat templates and none that is the default; name "
        "one: {}",
        fmt::join(names, ", "));
  }
  if (name.ends_with(".jinja")) {
    if (!is_file(name)) throw usage_error("data.chat_template: there is no file {}", name);
    return make_template_source(io::read_file(name), name);
  }
  const auto builtin_names = builtin_template_names();
  if (std::ranges::find(builtin_names, name) != builtin_names.end()) return find_builtin_template(name);
  std::vector<std::string> names(builtin_names.begin(), builtin_names.end());
  for (const auto& [template_name, source] : checkpoint_templates) names.push_back(template_name);
  throw usage_error(
      "data.chat_template: there is no chat template \"{}\"; there are {}, auto for the checkpoint's own, and files "
      "that "
      "end with .jinja",
      name, fmt::join(names, ", "));
}

void read_special_tokens(const fs::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings) {
  settings.special_tokens = read_external_tokens(folder).named_tokens;
  for (const auto& [name, token] : settings.special_tokens) {
    if (name == "eos_token") settings.end_tokens.push_back(token);
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    add_end_tokens(folder / name, tokenizer, settings.end_tokens);
  }
}

}  // namespace vlmtrain::text

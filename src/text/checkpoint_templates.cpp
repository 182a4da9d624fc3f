#include "vlmtrain/text/checkpoint_templates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "text/is_file.h"
#include "text/outside_token.h"
#include "text/warn_once.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefault = "default";
constexpr const char* kTemplateKey = "chat_template";
constexpr const char* kTemplateFile = "chat_template.json";
constexpr const char* kJinjaFile = "chat_template.jinja";
constexpr const char* kMoreTemplates = "additional_chat_templates";

TemplateSource source_of(std::string jinja, std::string name) {
  return {.jinja = std::move(jinja), .name = std::move(name)};
}

using Templates = std::map<std::string, TemplateSource>;

Templates templates_of_folder(const fs::path& folder) {
  Templates found;
  const auto add = [&found](const std::string& name, const fs::path& file) {
    found.insert_or_assign(name, source_of(io::read_file(file), file.string()));
  };
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / kMoreTemplates, error)) {
    if (entry.path().extension() == ".jinja" && is_file(entry.path())) add(entry.path().stem().string(), entry.path());
  }
  if (is_file(folder / kJinjaFile)) add(kDefault, folder / kJinjaFile);
  return found;
}

/// Of a value under "chat_template": a text, a list of {name, template}, or names with their texts.
std::map<std::string, TemplateSource> templates_of_json(const nlohmann::json& json, const fs::path& path) {
  std::map<std::string, TemplateSource> found;
  const std::string source = path.string();
  if (!json.is_object()) throw data_error("{}: is {}, no object", source, io::json_excerpt(json));
  const auto value = json.value(kTemplateKey, nlohmann::json());
  const auto add = [&](const std::string& name, const nlohmann::json& text) {
    if (!text.is_string()) throw data_error("{}: {} \"{}\" is no text", source, kTemplateKey, name);
    const std::string shown = name == kDefault ? source : fmt::format("{} ({})", source, name);
    found.insert_or_assign(name, source_of(text.get<std::string>(), shown));
  };
  if (value.is_null()) return found;
  if (value.is_array()) {
    for (const auto& entry : value) {
      add(io::get<std::string>(entry, "name", source), entry.value("template", nlohmann::json()));
    }
  } else if (value.is_object()) {
    for (const auto& [name, text] : value.items()) add(name, text);
  } else {
    add(kDefault, value);
  }
  return found;
}

/// Of one of the JSON files; without any where the file is missing.
Templates templates_of_file(const fs::path& file) {
  return is_file(file) ? templates_of_json(io::read_json(file), file) : Templates();
}

/// Templates that whoever asks for the default does not get although they stand where the default is looked for.
void report_others(const Templates& taken, const std::vector<Templates>& sources) {
  const auto own = taken.find(kDefault);
  if (own == taken.end()) return;
  for (const Templates& source : sources) {
    const auto other = source.find(kDefault);
    if (other == source.end() || own->second.jinja == other->second.jinja) continue;
    warn_once(fmt::format(
        "{}: differs from the chat template in {}, which is taken, as transformers' processors do; remove one of them",
        other->second.name, own->second.name));
  }
}

/// What a template says does not hang on a slip in these files; who generates answers is told of it.
std::vector<int64_t> ids_if_well_formed(const nlohmann::json& config, const fs::path& file) {
  try {
    return eos_token_ids(config, file.string());
  } catch (const UserError&) {
    return {};
  }
}

void add_end_tokens(const fs::path& file, const Tokenizer& tokenizer, std::vector<std::string>& tokens) {
  if (!is_file(file)) return;
  const auto json = io::read_json(file);
  for (const auto* part : {&json, json.is_object() && json.contains("text_config") ? &json["text_config"] : nullptr}) {
    if (part == nullptr) continue;
    for (const int64_t id : ids_if_well_formed(*part, file)) {
      std::string token(tokenizer.id_to_token(id));
      if (!token.empty() && std::ranges::count(tokens, token) == 0) tokens.push_back(std::move(token));
    }
  }
}

}  // namespace

std::vector<int64_t> eos_token_ids(const nlohmann::json& config, const std::string& source) {
  const char* const key = "eos_token_id";
  const bool has_it = config.is_object() && config.contains(key) && !config[key].is_null();
  if (has_it && config[key].is_array()) return io::get<std::vector<int64_t>>(config, key, source);
  if (config.is_object() && !has_it) return {};
  return {io::get<int64_t>(config, key, source)};
}

std::map<std::string, TemplateSource> templates_in(const fs::path& folder) {
  // As ProcessorMixin.get_processor_dict of transformers 5.24 has it; a tokenizer alone begins with the third.
  std::vector<Templates> sources;
  sources.push_back(templates_of_file(folder / "processor_config.json"));
  sources.push_back(templates_of_file(folder / kTemplateFile));
  if (sources.back().empty() && is_file(folder / kTemplateFile)) {
    throw data_error("{}: has no {}; fetch the file again", (folder / kTemplateFile).string(), kTemplateKey);
  }
  sources.push_back(templates_of_folder(folder));
  const auto first = std::ranges::find_if(sources, [](const Templates& source) { return !source.empty(); });
  Templates found = first != sources.end() ? *first : templates_of_file(folder / "tokenizer_config.json");
  report_others(found, sources);
  if (first != sources.end()) {
    // Others by name are there too, for data.chat_template.
    for (const Templates& source : sources) found.insert(source.begin(), source.end());
  }
  // One alone is the default whatever its name.
  if (found.size() == 1 && !found.contains(kDefault)) {
    auto only = found.extract(found.begin());
    only.key() = kDefault;
    found.insert(std::move(only));
  }
  if (const auto own = found.find(kDefault); own != found.end()) own->second.is_in_checkpoint = true;
  return found;
}

TemplateSource choose_template(const std::string& wanted, const std::map<std::string, TemplateSource>& own,
                               std::string_view fallback) {
  const auto found = own.find(wanted == "auto" ? kDefault : wanted);
  if (found != own.end()) return found->second;
  if (wanted == "auto") {
    if (own.empty()) return template_by_name(fallback);
    std::vector<std::string> names;
    names.reserve(own.size());
    for (const auto& [name, source] : own) names.push_back(name);
    throw usage_error(
        "data.chat_template: the checkpoint has several chat templates and none that is the default; name "
        "one: {}",
        fmt::join(names, ", "));
  }
  if (wanted.ends_with(".jinja")) {
    if (!is_file(wanted)) throw usage_error("data.chat_template: there is no file {}", wanted);
    return source_of(io::read_file(wanted), wanted);
  }
  const auto known = template_names();
  if (std::ranges::find(known, wanted) != known.end()) return template_by_name(wanted);
  std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [name, source] : own) names.push_back(name);
  throw usage_error(
      "data.chat_template: there is no chat template \"{}\"; there are {}, auto for the checkpoint's own, and files "
      "that "
      "end with .jinja",
      wanted, fmt::join(names, ", "));
}

void read_special_tokens(const fs::path& folder, const Tokenizer& tokenizer, TemplateSettings& settings) {
  settings.special_tokens = read_outside_tokens(folder).named;
  for (const auto& [name, token] : settings.special_tokens) {
    if (name == "eos_token") settings.end_tokens.push_back(token);
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    add_end_tokens(folder / name, tokenizer, settings.end_tokens);
  }
}

}  // namespace vlmtrain::text

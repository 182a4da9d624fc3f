#include "vlmtrain/text/checkpoint_templates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefault = "default";
constexpr const char* kTemplateKey = "chat_template";
constexpr const char* kTemplateFile = "chat_template.json";

/// What is there and cannot be read, such as a link into a cache that lacks the file, is not nothing.
bool is_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return false;
  if (fs::is_regular_file(path, error)) return true;
  const std::string_view kind = fs::exists(path, error) ? kind_if_no_file(path) : "a link to a file that is not there";
  throw data_error("{}: is {}; a file is wanted here: fetch the checkpoint again", path.string(), kind);
}

TemplateSource source_of(std::string jinja, std::string name) {
  return {.jinja = std::move(jinja), .name = std::move(name)};
}

std::map<std::string, TemplateSource> templates_of_folder(const fs::path& folder) {
  std::map<std::string, TemplateSource> found;
  const auto add = [&found](const std::string& name, const fs::path& file) {
    found.insert_or_assign(name, source_of(io::read_file(file), file.string()));
  };
  if (is_file(folder / "chat_template.jinja")) add(kDefault, folder / "chat_template.jinja");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates", error)) {
    if (entry.path().extension() == ".jinja" && is_file(entry.path())) add(entry.path().stem().string(), entry.path());
  }
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

/// The text of a token: itself, or the "content" of an added token.
std::optional<std::string> token_text(const nlohmann::json& value) {
  const auto& text = value.is_object() ? value.value("content", nlohmann::json()) : value;
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
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
  auto found = templates_of_folder(folder);
  for (const char* name : {kTemplateFile, "tokenizer_config.json"}) {
    if (!found.empty()) break;
    if (is_file(folder / name)) found = templates_of_json(io::read_json(folder / name), folder / name);
    if (found.empty() && name == kTemplateFile && is_file(folder / name)) {
      throw data_error("{}: has no {}; fetch the file again", (folder / name).string(), kTemplateKey);
    }
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
  constexpr std::array kNames{"bos_token", "eos_token", "unk_token", "sep_token",
                              "pad_token", "cls_token", "mask_token"};
  std::map<std::string, std::string> tokens;
  // The tokenizer's own configuration, where it has one, is the newer file.
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (!is_file(folder / name)) continue;
    const auto json = io::read_json(folder / name);
    if (!json.is_object()) continue;
    for (const char* const key : kNames) {
      if (const auto text = token_text(json.value(key, nlohmann::json()))) tokens[key] = *text;
    }
  }
  settings.special_tokens.assign(tokens.begin(), tokens.end());
  if (const auto eos = tokens.find("eos_token"); eos != tokens.end()) settings.end_tokens.push_back(eos->second);
  for (const char* name : {"generation_config.json", "config.json"}) {
    add_end_tokens(folder / name, tokenizer, settings.end_tokens);
  }
}

}  // namespace vlmtrain::text

#include "models/checkpoints/companion_files.h"

#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

namespace {

constexpr std::string_view kCompanionFiles[] = {"tokenizer.json",
                                                "tokenizer_config.json",
                                                "special_tokens_map.json",
                                                "added_tokens.json",
                                                "vocab.json",
                                                "merges.txt",
                                                "tokenizer.model",
                                                "preprocessor_config.json",
                                                "video_preprocessor_config.json",
                                                "processor_config.json",
                                                "chat_template.jinja",
                                                "chat_template.json",
                                                "generation_config.json",
                                                "image_processor_config.json",
                                                "volume_settings.json",
                                                "media_settings.json"};

/// nanoVLM's key.
constexpr const char* kTemplateInConfig = "lm_chat_template";

}  // namespace

std::span<const std::string_view> companion_file_names() {
  return kCompanionFiles;
}

void copy_companion_files(const std::filesystem::path& source, const std::filesystem::path& out) {
  for (const auto& [name, content] : read_companion_files(source)) io::write_file(out / name, content);
}

void put_chat_template(const std::string& jinja, std::map<std::string, std::string>& files) {
  files.erase("chat_template.json");
  files["chat_template.jinja"] = jinja;
  const auto edit = [&files](const char* name, const auto& change) {
    const auto file = files.find(name);
    if (file == files.end()) return;
    auto json = io::parse_ordered_json(file->second, name);
    if (json.is_object() && change(json)) file->second = io::json_text(json, 2) + "\n";
  };
  edit("tokenizer_config.json", [](auto& json) { return json.erase("chat_template") > 0; });
  edit("config.json", [&jinja](auto& json) {
    if (!json.contains(kTemplateInConfig)) return false;
    json[kTemplateInConfig] = jinja;
    return true;
  });
}

std::map<std::string, std::string> read_companion_files(const std::filesystem::path& source) {
  std::map<std::string, std::string> files;
  for (const auto name : kCompanionFiles) {
    if (std::filesystem::exists(source / name)) files[std::string(name)] = io::read_file(source / name);
  }
  return files;
}

}  // namespace vlmtrain::models

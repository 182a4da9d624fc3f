#include "models/checkpoints/auxiliary_files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

namespace {

constexpr std::string_view kAuxiliaryFileNames[] = {"tokenizer.json",
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

/// Key of the chat template in nanoVLM's config.json.
constexpr const char* kNanoVlmChatTemplateKey = "lm_chat_template";
constexpr const char* kChatTemplateKey = "chat_template";
constexpr const char* kChatTemplateFileName = "chat_template.jinja";
constexpr const char* kExtraChatTemplateFolder = "additional_chat_templates/";
constexpr const char* kFileNamesWithChatTemplates[] = {"chat_template.json", "processor_config.json",
                                                       "tokenizer_config.json"};

/// Returns the default template of a `chat_template` value: a string, a list of {name, template},
/// or an object of strings by name. Returns nothing for null.
std::optional<std::string> get_default_template(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) return value.value("default", std::string());
  if (!value.is_array()) return std::nullopt;
  for (const auto& entry : value) {
    if (entry.is_object() && entry.value("name", std::string()) == "default") {
      return entry.value("template", std::string());
    }
  }
  return std::string();
}

/// Returns true if the files have a default template and all default templates equal `jinja`.
bool is_only_default_template(const std::string& jinja, const std::map<std::string, std::string>& files) {
  size_t num_templates = 0, num_equal_templates = 0;
  const auto count_template = [&](const std::optional<std::string>& text) {
    num_templates += text ? 1 : 0;
    num_equal_templates += text == jinja ? 1 : 0;
  };
  if (const auto file = files.find(kChatTemplateFileName); file != files.end()) count_template(file->second);
  const auto count_file_template = [&](const char* name, const char* key) {
    const auto file = files.find(name);
    if (file == files.end()) return;
    const auto json = io::parse_ordered_json(file->second, name);
    if (json.is_object() && json.contains(key)) count_template(get_default_template(json[key]));
  };
  for (const char* const name : kFileNamesWithChatTemplates) count_file_template(name, kChatTemplateKey);
  count_file_template("config.json", kNanoVlmChatTemplateKey);
  return num_templates > 0 && num_equal_templates == num_templates;
}

using FileContentMap = std::map<std::string, std::string>;

constexpr std::array<std::string_view, 7> kTokenizerFileNames{
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model"};
constexpr std::string_view kChatTemplateFilePrefix = "chat_template.";
constexpr const char* kProcessorFileName = "processor_config.json";
constexpr const char* kImageProcessorFileName = "preprocessor_config.json";
constexpr const char* kVideoProcessorFileName = "video_preprocessor_config.json";

/// Returns true if processor_config.json has a processor under `key`, where transformers 5 saves
/// it.
bool has_processor_section(const FileContentMap& files, const char* key) {
  const auto file = files.find(kProcessorFileName);
  if (file == files.end()) return false;
  const auto json = io::parse_json(file->second, kProcessorFileName);
  return json.is_object() && json.contains(key) && json[key].is_object();
}

bool is_template_file(std::string_view name) {
  return name.starts_with(kChatTemplateFilePrefix) || name.starts_with(kExtraChatTemplateFolder);
}

}  // namespace

std::span<const std::string_view> get_auxiliary_file_names() {
  return kAuxiliaryFileNames;
}

void copy_auxiliary_files(const std::filesystem::path& source, const std::filesystem::path& out) {
  for (const auto& [name, content] : read_auxiliary_files(source)) write_auxiliary_file(out, name, content);
}

void write_auxiliary_file(const std::filesystem::path& out, const std::string& name, const std::string& content) {
  const auto file = out / name;
  std::filesystem::create_directories(file.parent_path());
  io::write_file(file, content);
}

void set_chat_template(const std::string& jinja, std::map<std::string, std::string>& files) {
  if (is_only_default_template(jinja, files)) return;
  std::erase_if(files, [](const auto& file) { return file.first.starts_with(kExtraChatTemplateFolder); });
  files.erase("chat_template.json");
  files[kChatTemplateFileName] = jinja;
  const auto edit_json_file = [&files](const char* name, const auto& edit_value) {
    const auto file = files.find(name);
    if (file == files.end()) return;
    auto json = io::parse_ordered_json(file->second, name);
    if (json.is_object() && edit_value(json)) file->second = io::to_json_string(json, 2) + "\n";
  };
  for (const char* const name : {"processor_config.json", "tokenizer_config.json"}) {
    edit_json_file(name, [](auto& json) { return json.erase(kChatTemplateKey) > 0; });
  }
  edit_json_file("config.json", [&jinja](auto& json) {
    if (!json.contains(kNanoVlmChatTemplateKey)) return false;
    json[kNanoVlmChatTemplateKey] = jinja;
    return true;
  });
}

void add_eos_token(int64_t id, std::map<std::string, std::string>& files) {
  constexpr const char* kGenerationConfigFileName = "generation_config.json";
  constexpr const char* kEosTokenIdKey = "eos_token_id";
  const auto file = files.find(kGenerationConfigFileName);
  auto settings = nlohmann::ordered_json::object();
  if (file != files.end()) {
    settings = io::parse_ordered_json(file->second, kGenerationConfigFileName);
    if (!settings.is_object()) return;
  } else if (const auto config_file = files.find("config.json"); config_file != files.end()) {
    // Same keys as GenerationConfig.from_model_config of transformers.
    const auto config = io::parse_ordered_json(config_file->second, "config.json");
    for (const char* const key : {"bos_token_id", kEosTokenIdKey, "pad_token_id"}) {
      for (const auto* section : {&config, config.contains("text_config") ? &config["text_config"] : nullptr}) {
        if (section == nullptr || !section->is_object() || settings.contains(key)) continue;
        if (section->contains(key) && !(*section)[key].is_null()) settings[key] = (*section)[key];
      }
    }
  }
  std::vector<int64_t> ids = text::parse_eos_token_ids(settings, kGenerationConfigFileName);
  if (std::ranges::count(ids, id) > 0) return;
  ids.push_back(id);
  settings[kEosTokenIdKey] = ids.size() == 1 ? nlohmann::ordered_json(id) : nlohmann::ordered_json(ids);
  files[kGenerationConfigFileName] = io::to_json_string(settings, 2) + "\n";
}

std::map<std::string, std::string> read_auxiliary_files(const std::filesystem::path& source) {
  std::map<std::string, std::string> files;
  for (const auto name : kAuxiliaryFileNames) {
    if (std::filesystem::exists(source / name)) files[std::string(name)] = io::read_file(source / name);
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(source / kExtraChatTemplateFolder, error)) {
    if (entry.path().extension() != ".jinja" || !entry.is_regular_file()) continue;
    files[kExtraChatTemplateFolder + entry.path().filename().string()] = io::read_file(entry.path());
  }
  return files;
}

namespace fs = std::filesystem;

void prepare_output_folder(const fs::path& out) {
  if (out.empty()) throw usage_error("--out: is empty; give the folder of the new checkpoint");
  if (fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out))) {
    throw usage_error("--out {}: already exists; give a new folder or remove it", out.string());
  }
  // Removes a trailing separator, whose parent path would be the folder itself.
  const fs::path normalized = (out / "").parent_path();
  io::clean_up_abandoned_temp_files(normalized.has_parent_path() ? normalized.parent_path() : fs::path("."));
}

FileContentMap merge_auxiliary_files(const std::filesystem::path& base, const std::filesystem::path& adapter) {
  FileContentMap files = read_auxiliary_files(base);
  const FileContentMap adapter_files = read_auxiliary_files(adapter);
  const auto erase_replaced_files = [&files](const auto& is_replaced) {
    std::erase_if(files, [&](const auto& file) { return is_replaced(std::string_view(file.first)); });
  };
  if (adapter_files.contains("tokenizer.json")) {
    erase_replaced_files([](std::string_view name) {
      return std::ranges::find(kTokenizerFileNames, name) != kTokenizerFileNames.end();
    });
  }
  if (std::ranges::any_of(adapter_files, [](const auto& file) { return is_template_file(file.first); }))
    erase_replaced_files(is_template_file);
  constexpr const char* kImageProcessorKey = "image_processor";
  if (adapter_files.contains(kImageProcessorFileName) || has_processor_section(adapter_files, kImageProcessorKey)) {
    files.erase(kImageProcessorFileName);
    if (has_processor_section(files, kImageProcessorKey)) files.erase(kProcessorFileName);
  }
  if (has_processor_section(adapter_files, "video_processor")) files.erase(kVideoProcessorFileName);
  for (const auto& [name, content] : adapter_files) files.insert_or_assign(name, content);
  return files;
}

}  // namespace vlmtrain::models

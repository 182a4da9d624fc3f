#include "models/adapters/auxiliary_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/checkpoints/companion_files.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

using Files = std::map<std::string, std::string>;

constexpr std::array<std::string_view, 7> kTokenizerFiles{
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model"};
constexpr std::string_view kTemplatePrefix = "chat_template.";
constexpr std::string_view kNamedTemplatePrefix = "additional_chat_templates/";
constexpr const char* kProcessorFile = "processor_config.json";
constexpr const char* kImageProcessorFile = "preprocessor_config.json";
constexpr const char* kVideoProcessorFile = "video_preprocessor_config.json";

/// Whether processor_config.json holds a processor under `key`, as transformers 5 writes them.
bool holds_processor(const Files& files, const char* key) {
  const auto file = files.find(kProcessorFile);
  if (file == files.end()) return false;
  const auto json = io::parse_json(file->second, kProcessorFile);
  return json.is_object() && json.contains(key) && json[key].is_object();
}

bool is_template(std::string_view name) {
  return name.starts_with(kTemplatePrefix) || name.starts_with(kNamedTemplatePrefix);
}

}  // namespace

Files merge_auxiliary_files(const std::filesystem::path& base, const std::filesystem::path& adapter) {
  Files files = read_auxiliary_files(base);
  const Files adapter_files = read_auxiliary_files(adapter);
  const auto erase_matching = [&files](const auto& is_replaced) {
    std::erase_if(files, [&](const auto& file) { return is_replaced(std::string_view(file.first)); });
  };
  if (adapter_files.contains("tokenizer.json")) {
    erase_matching(
        [](std::string_view name) { return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end(); });
  }
  if (std::ranges::any_of(adapter_files, [](const auto& file) { return is_template(file.first); }))
    erase_matching(is_template);
  constexpr const char* kImageSection = "image_processor";
  if (adapter_files.contains(kImageProcessorFile) || holds_processor(adapter_files, kImageSection)) {
    files.erase(kImageProcessorFile);
    if (holds_processor(files, kImageSection)) files.erase(kProcessorFile);
  }
  if (holds_processor(adapter_files, "video_processor")) files.erase(kVideoProcessorFile);
  for (const auto& [name, content] : adapter_files) files.insert_or_assign(name, content);
  return files;
}

}  // namespace vlmtrain::models

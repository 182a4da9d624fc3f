#include "models/adapters/auxiliary_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/checkpoints/companion_files.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

using Files = std::map<std::string, std::string>;

constexpr std::array<std::string_view, 7> kTokenizer{
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model"};
constexpr std::string_view kTemplates = "chat_template.";
constexpr std::string_view kNamedTemplates = "additional_chat_templates/";
constexpr const char* kProcessor = "processor_config.json";
constexpr const char* kImages = "preprocessor_config.json";
constexpr const char* kVideos = "video_preprocessor_config.json";

/// Whether processor_config.json holds a processor under `key`, as transformers 5 writes them.
bool holds_processor(const Files& files, const char* key) {
  const auto file = files.find(kProcessor);
  if (file == files.end()) return false;
  const auto json = io::parse_json(file->second, kProcessor);
  return json.is_object() && json.contains(key) && json[key].is_object();
}

bool is_template(std::string_view name) {
  return name.starts_with(kTemplates) || name.starts_with(kNamedTemplates);
}

}  // namespace

Files auxiliary_files(const std::filesystem::path& base, const std::filesystem::path& adapter) {
  Files files = read_companion_files(base);
  const Files own = read_companion_files(adapter);
  const auto erase = [&files](const auto& is_replaced) {
    std::erase_if(files, [&](const auto& file) { return is_replaced(std::string_view(file.first)); });
  };
  if (own.contains("tokenizer.json")) {
    erase([](std::string_view name) { return std::ranges::find(kTokenizer, name) != kTokenizer.end(); });
  }
  if (std::ranges::any_of(own, [](const auto& file) { return is_template(file.first); })) erase(is_template);
  constexpr const char* kImageSection = "image_processor";
  if (own.contains(kImages) || holds_processor(own, kImageSection)) {
    files.erase(kImages);
    if (holds_processor(files, kImageSection)) files.erase(kProcessor);
  }
  if (holds_processor(own, "video_processor")) files.erase(kVideos);
  for (const auto& [name, content] : own) files.insert_or_assign(name, content);
  return files;
}

}  // namespace vlmtrain::models

#include "models/companion_files.h"

#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::models {

namespace {

constexpr const char* kCompanionFiles[] = {"tokenizer.json",
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
                                           "image_processor_config.json"};

}  // namespace

void copy_companion_files(const std::filesystem::path& source, const std::filesystem::path& out) {
  for (const auto& [name, content] : read_companion_files(source)) io::write_file(out / name, content);
}

std::map<std::string, std::string> read_companion_files(const std::filesystem::path& source) {
  std::map<std::string, std::string> files;
  for (const char* name : kCompanionFiles) {
    if (std::filesystem::exists(source / name)) files[name] = io::read_file(source / name);
  }
  return files;
}

}  // namespace vlmtrain::models

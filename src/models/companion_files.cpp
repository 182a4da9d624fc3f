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
  for (const char* name : kCompanionFiles) {
    if (std::filesystem::exists(source / name)) io::write_file(out / name, io::read_file(source / name));
  }
}

}  // namespace vlmtrain::models

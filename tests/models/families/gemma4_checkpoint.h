#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "models/gemma4/processor.h"
#include "models/presets.h"
#include "models/processing/chat_encoder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::gemma4 {

/// Tokenizer, chat template and processor files of a small Gemma 4, which a test edits.
class Checkpoint {
 public:
  /// Writes the files. `config` has the ids of the tokenizer.
  explicit Checkpoint(bool merges_patches = false) {
    config_.patches.merges_patches = merges_patches;
    config_.tokens = {.image = 604, .video = 605, .image_start = 602, .image_end = 603};
    nlohmann::json tokenizer = nlohmann::json::parse(resources().at("gemma-3-tiny/tokenizer.json"));
    auto& tokens = tokenizer["added_tokens"];
    const char* const texts[]{"<|image>", "<image|>", "<|image|>"};  // the last three tokens of Gemma 3
    for (size_t i = 0; i < std::size(texts); ++i) tokens[tokens.size() - std::size(texts) + i]["content"] = texts[i];
    nlohmann::json video = tokens.back();
    video["id"] = config_.tokens.video;
    video["content"] = "<|video|>";
    tokens.push_back(video);
    write("tokenizer.json", tokenizer.dump());
    write("tokenizer_config.json", R"({"bos_token": "<bos>", "eos_token": "<eos>"})");
    write("chat_template.jinja",
          "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' }}"
          "{% for block in message['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
          "{% else %}{{ '<|' + block['type'] + '|>' }}{% endif %}{% endfor %}{{ '<end_of_turn>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<start_of_turn>assistant\\n' }}{% endif %}");
    const std::string type = merges_patches ? "Gemma4Unified" : "Gemma4";
    write("processor_config.json",
          nlohmann::json{{"image_processor", {{"image_processor_type", type + "ImageProcessor"}, {"size", nullptr}}},
                         {"video_processor", {{"video_processor_type", type + "VideoProcessor"}}},
                         {"image_seq_length", 280}}
              .dump());
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  const ProcessorConfig& config() const { return config_; }
  ProcessorConfig& config() { return config_; }

  void write(const std::string& file, const std::string& content) const { io::write_file(path() / file, content); }
  /// Merges a patch into a section of processor_config.json.
  void edit(const std::string& section, const nlohmann::json& patch) const {
    nlohmann::json file = io::read_json(path() / "processor_config.json");
    file[section].merge_patch(patch);
    write("processor_config.json", file.dump());
  }

  std::unique_ptr<Processor> load_processor(const ProcessorSettings& settings = {}) const {
    const auto images = read_image_settings(path(), config_.patches, settings.image_max_pixels);
    const auto videos = VideoSettings::read(path(), config_.patches, settings);
    text::Tokenizer tokenizer = load_tokenizer(path());
    const MediaTokenTexts texts = find_media_token_texts(tokenizer, config_.tokens);
    text::ChatTemplate chat_template = load_chat_template(path(), tokenizer, settings,
                                                          {.fallback = "gemma3",
                                                           .image_markup = {.block = texts.image, .token = texts.image},
                                                           .video_markup = {.block = texts.video, .token = texts.video},
                                                           .text_after_leading_image = ""});
    return make_processor(config_, images, videos, std::move(tokenizer), std::move(chat_template), settings);
  }

 private:
  parity::TemporaryFolder folder_;
  ProcessorConfig config_;
};

}  // namespace vlmtrain::models::gemma4

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/brain_llava/config.h"
#include "models/processing/conversation_processor.h"

namespace vlmtrain::models::brain_llava {

/// Each volume is one row of the tower's input, a series so many as frames of it are looked at, and so many image
/// tokens a row.
class Processor final : public ConversationProcessor {
 public:
  /// Throws UserError: kUsage for settings (data.volume) that the model cannot take, kBadData for a tokenizer that does
  /// not fit config.json.
  Processor(Config config, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            const ProcessorSettings& settings);

 private:
  bool supports_images() const override { return false; }
  bool supports_volumes() const override { return true; }
  std::optional<int64_t> max_volumes() const override { return config_.max_volumes; }
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  MediaLayout layout_volume(const image::VolumeInfo& info) const override;
  at::Tensor preprocess_volume(const io::MediaRef& file) const override;
  int64_t find_modality_id(const std::string& modality) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;

  Config config_;
  image::VolumeSettings volumes_;
};

}  // namespace vlmtrain::models::brain_llava

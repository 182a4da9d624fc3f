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
  bool takes_pictures() const override { return false; }
  bool takes_volumes() const override { return true; }
  std::optional<int64_t> most_volumes() const override { return config_.max_volumes; }
  ImagePlan plan(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  ImagePlan plan_volume(const image::VolumeInfo& info) const override;
  at::Tensor pixels_of_volume(const io::Medium& file) const override;
  int64_t modality_number(const std::string& modality) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const override;

  Config config_;
  image::VolumeSettings volumes_;
};

}  // namespace vlmtrain::models::brain_llava

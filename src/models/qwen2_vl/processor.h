#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/processing/chat_encoder.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::qwen2_vl {

/// Encoder of Qwen2-VL and its successors, whose positions have three axes.
class GridEncoder final : public ChatEncoder {
 public:
  /// Ids of kImagePad and kVideoPad in config.json, and the number of embedding rows.
  struct VocabularyInfo {
    int64_t image, video, vocab_size;
  };
  /// The positions of videos.
  struct VideoPositions {
    data::VideoTokenLayout layout = data::VideoTokenLayout::kReleasedCode;
    bool are_frames_separate = false;  ///< whether text separates the temporal patches of a video
  };

  /// Throws UserError (kBadData) if the tokenizer does not match `tokens`.
  GridEncoder(const VisionConfig& vision, const VocabularyInfo& tokens, const VideoPositions& videos,
              text::Tokenizer tokenizer, text::ChatTemplate chat_template);

  std::vector<int64_t> make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> media) const override;

 private:
  VisionConfig vision_;
  VideoPositions video_positions_;
};

/// Returns the format of the tower's input, one patch per row.
TowerInputFormat make_patch_format(const VisionConfig& vision);

/// Returns the processor of Qwen2-VL and Qwen2.5-VL (transformers' Qwen2VLProcessor and
/// Qwen2_5_VLProcessor). The tokens of an image or video are between <|vision_start|> and
/// <|vision_end|>. Two video frames form a temporal patch. Throws as GridEncoder().
std::unique_ptr<Processor> make_processor(const Config& config, const PixelSettings& images, VideoSettings videos,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings);

}  // namespace vlmtrain::models::qwen2_vl

#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/bad_samples.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/data/video_layout.h"
#include "vlmtrain/data/volume_options.h"
#include "vlmtrain/image/augment.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

struct ProcessorSettings {
  int64_t max_length = 8192;  ///< tokens, image tokens included; no sample is cut
  data::LongSamplePolicy on_too_long = data::LongSamplePolicy::kShrink;  ///< of samples that are longer
  std::optional<int64_t> max_images_per_sample;                          ///< nothing: no limit
  std::optional<int64_t> image_max_pixels;  ///< nothing: what the checkpoint's own processor allows
  double video_fps = 2.0;                   ///< frames looked at, a second of video
  int64_t video_max_frames = 128;           ///< most frames of a video that are looked at
  data::VideoLayout video_layout = data::VideoLayout::kReleased;
  image::AugmentSettings augment = {};     ///< of pictures and their masks, in training
  std::optional<int64_t> mask_image_size;  ///< side of the mask encoder's squares; nothing: config.json's
  data::VolumeOptions volume = {};         ///< what becomes of scans
  std::string chat_template = "auto";      ///< as text::choose_template
  std::string chat_template_date;          ///< "2026-11-22", what templates take for today; empty: today
  /// Whose chat templates are the checkpoint's own; empty: the checkpoint's folder.
  std::filesystem::path template_folder;
};

/// What turns conversations with images into a family's samples, and its tokens back into text. Thread-safe.
class Processor : public data::SampleProcessor {
 public:
  /// The conversation up to where its next answer begins: no labels, no end. A last assistant turn is left out.
  virtual data::Sample process_prompt(const io::Record& record, int64_t index) const = 0;
  /// The same as outline(): pixel_values have a shape and no values. For prompts whose image features are known.
  virtual data::Sample outline_prompt(const io::Record& record, int64_t index) const = 0;

  /// The text before images become tokens; `as_prompt` as process_prompt. Throws data::SampleError.
  virtual text::RenderedChat render(const io::Record& record, bool as_prompt) const = 0;
  virtual const text::ChatTemplate& chat_template() const = 0;

  /// The pictures that the pixels of `sample`, which process() made of `record`, show: in the order of their marks,
  /// videos frame by frame.
  virtual std::vector<MediaPreview> preview_media(const io::Record& record, const data::Sample& sample) const = 0;

  /// Whether the family draws masks (data::Masks). Of one that does not, records' masks are passed over.
  virtual bool predicts_masks() const { return false; }
  /// The masks of a record in their pictures' own size, uint8 [height, width] of 0 and 1. Throws UserError (kBadData).
  virtual std::vector<at::Tensor> load_masks(const io::Record& /*record*/) const { return {}; }
  /// `prompt`, which process_prompt() made of `record`, with an answer behind it and a mask of the first picture for
  /// each token of the answer that stands for one; their targets are not known. Nothing where there is none to draw.
  virtual std::optional<data::Sample> make_mask_prompt(const io::Record& /*record*/, const data::Sample& /*prompt*/,
                                                       const std::vector<int64_t>& /*answer*/) const {
    return std::nullopt;
  }

  virtual const text::Tokenizer& tokenizer() const = 0;
  /// The token that ends an answer.
  virtual int64_t end_of_turn_id() const = 0;
  /// The most tokens of a conversation, its answer included, that the model has positions for, where more of them would
  /// be wrong.
  virtual int64_t max_positions() const { return std::numeric_limits<int64_t>::max(); }

  std::optional<data::PositionLimit> position_limit() const final { return made_for_; }
  /// What position_limit() returns; to be called before the processor is shared.
  void set_made_for(data::PositionLimit limit) { made_for_ = std::move(limit); }

 private:
  std::optional<data::PositionLimit> made_for_;
};

}  // namespace vlmtrain::models

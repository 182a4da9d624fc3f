#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/models/box_format.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

struct MediaPreview;  // media_preview.h

/// Settings of load_processor(), from the run's configuration.
struct ProcessorSettings {
  int64_t max_length = 8192;  ///< in tokens, image tokens included; samples are never truncated
  data::LongSamplePolicy on_too_long = data::LongSamplePolicy::kShrink;  ///< action for longer samples
  std::optional<int64_t> max_images_per_sample;                          ///< nullopt: no limit
  std::optional<int64_t> image_max_pixels;  ///< nullopt: the limit of the checkpoint's processor
  double video_fps = 2.0;                   ///< sampled frames per second of video
  int64_t video_max_frames = 128;           ///< maximum number of sampled frames per video
  data::VideoTokenLayout video_layout = data::VideoTokenLayout::kReleasedCode;
  data::TrainedAnswers train_on = data::TrainedAnswers::kAll;
  image::AugmentSettings augment = {};     ///< augmentation of images, masks and boxes, in training only
  data::BoxConversion boxes = {};          ///< how boxes and points are written
  std::optional<int64_t> mask_image_size;  ///< side of the mask encoder's input; nullopt: as in config.json
  data::VolumeOptions volume = {};         ///< use of volumes
  std::string chat_template = "auto";      ///< as in text::choose_template()
  std::string chat_template_date;          ///< date that templates print, "YYYY-MM-DD"; empty: today
  /// Folder whose chat templates count as the checkpoint's own; empty: the checkpoint's folder.
  std::filesystem::path chat_template_folder;
};

/// The processor of a model family: turns conversations with media into samples, and tokens back
/// into text. Thread-safe.
class Processor : public data::SampleProcessor {
 public:
  /// Returns the sample of a conversation up to the start of its next answer, without labels. If
  /// the last turn is the assistant's, drops it. Throws data::SampleError.
  virtual data::Sample process_prompt(const io::Record& record, int64_t index) const = 0;
  /// Returns process_prompt() with pixel_values that have a shape but no values, like
  /// process_headers(). For prompts whose image features are already computed.
  virtual data::Sample process_prompt_headers(const io::Record& record, int64_t index) const = 0;

  /// Returns the rendered chat before media placeholders are expanded to image tokens. With
  /// `as_prompt`, ends it like process_prompt(). Throws data::SampleError.
  virtual text::RenderedChat render(const io::Record& record, bool as_prompt) const = 0;
  virtual const text::ChatTemplate& chat_template() const = 0;
  /// Returns the turns of a record with its boxes and points as the model reads and writes them.
  /// Throws data::SampleError.
  virtual WrittenRecord write_objects(const io::Record& record) const = 0;

  /// Returns previews of the pixels of `sample`, which process() made from `record`, in the order
  /// of the media placeholders, videos frame by frame.
  virtual std::vector<MediaPreview> preview_media(const io::Record& record, const data::Sample& sample) const = 0;

  /// Returns whether the family predicts masks (data::SegmentationMasks). If not, masks of records
  /// are ignored.
  virtual bool predicts_masks() const = 0;
  /// Returns the masks of a record, uint8 [height, width] of 0 and 1, in the size of the mask's
  /// image. Throws UserError (kBadData).
  virtual std::vector<at::Tensor> load_masks(const io::Record& record) const = 0;
  /// Returns `prompt`, which process_prompt() made from `record`, extended by the token ids of an
  /// answer and by one mask of the first image for each mask token of the answer. The masks have no
  /// targets. Returns nothing if the answer has no mask token.
  virtual std::optional<data::Sample> make_mask_prompt(const io::Record& record, const data::Sample& prompt,
                                                       const std::vector<int64_t>& answer) const = 0;

  virtual const text::Tokenizer& tokenizer() const = 0;
  /// Returns the token that ends an answer.
  virtual int64_t end_of_turn_id() const = 0;
  /// Returns the maximum number of tokens of a conversation, answer included, that the model can
  /// process; the largest int64 if there is no hard limit.
  virtual int64_t max_positions() const = 0;

  std::optional<data::PositionLimit> position_limit() const final { return position_limit_; }
  /// Sets the result of position_limit(). REQUIRES: the processor is not shared yet.
  void set_position_limit(data::PositionLimit limit) { position_limit_ = std::move(limit); }

 private:
  std::optional<data::PositionLimit> position_limit_;
};

/// The processor files to save with a model that was trained with other settings than those of its
/// checkpoint.
struct ProcessorFiles {
  std::map<std::string, std::string> files;  ///< contents of the changed files, by name
  /// Settings that transformers' processor has no key for; each is a sentence that begins with the
  /// key of vlmtrain's configuration.
  std::vector<std::string> unsaved_settings;
};

/// Returns the processor files that make transformers' processor give the same tokens and pixels as
/// a processor of `folder` with `settings`: limits of pixels, tiles and frames, and the frame rate.
/// Updates all files that store a setting. With `has_videos`, the video sampling is saved even if
/// it equals the defaults. Throws UserError as load_processor().
ProcessorFiles make_processor_files(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                    bool has_videos);

/// Returns a hash of the processor files of the checkpoint `folder` and of all `settings`.
/// Processors with equal keys make samples of equal sizes from the same records and media.
std::string compute_sample_shape_key(const std::filesystem::path& folder, const ProcessorSettings& settings);

}  // namespace vlmtrain::models

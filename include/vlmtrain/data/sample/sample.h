#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// The kind of a medium.
enum class MediaKind { kImage, kVideo, kVolume };

/// The answers of a conversation that are in the loss, among those that the record does not exclude.
enum class TrainedAnswers {
  kAll,   ///< all answers
  kLast,  ///< only the last answer
};

/// The layout of videos in the token stream, for families whose implementations disagree.
enum class VideoTokenLayout {
  kReleasedCode,   ///< as in the code released with the checkpoints, and in vLLM
  kTransformers5,  ///< as in transformers 5.3 and later
};

/// The type and size of one row of Sample::pixel_values. The model family decides whether a row is
/// a tile (a crop of an image), a patch of an image in native resolution, or a volume.
struct PixelRowShape {
  at::ScalarType dtype = at::kByte;
  int64_t channels = 3;
  int64_t depth = 0;  ///< 0 for rows without this axis
  int64_t height = 0;
  int64_t width = 0;

  /// Returns the row type of `pixels` [rows, channels, height, width] or
  /// [rows, channels, depth, height, width].
  static PixelRowShape from_tensor(const at::Tensor& pixels);
  /// Returns the tensor sizes of `rows` rows.
  std::vector<int64_t> sizes(int64_t rows) const;
  /// Returns the bytes of one row.
  int64_t bytes() const;
  /// Returns the pixels or voxels of one row, per channel.
  int64_t pixels() const { return std::max<int64_t>(depth, 1) * height * width; }
  bool operator==(const PixelRowShape&) const = default;
};

/// The patches of one image or video in models of native resolution: frame by frame, with rows ·
/// columns patches each, in an order that the family defines. Patches attend to each other within a
/// frame, not across frames.
struct PatchGrid {
  int64_t frames = 1;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t patches_per_frame() const { return rows * columns; }
  int64_t patches() const { return frames * patches_per_frame(); }
  bool operator==(const PatchGrid&) const = default;
};

/// Number of axes of a three-dimensional position (time, height, width), as in M-RoPE of Qwen2-VL.
inline constexpr int64_t kNumPositionAxes = 3;

/// The sizes of a sample before and after its media were shrunk to fit data.max_length.
struct ShrinkInfo {
  int64_t tokens = 0;  ///< before
  int64_t pixels = 0;  ///< before, as given to the vision tower
  int64_t tokens_after = 0;
  int64_t pixels_after = 0;
  int64_t image_max_pixels = 0;  ///< limit of each image; 0 if only the settings limit it
  int64_t frame_max_pixels = 0;  ///< limit of each video frame; 0 if only the settings limit it

  bool operator==(const ShrinkInfo&) const = default;
};

/// Returns the members as an array in their order, for a cache or another process.
nlohmann::json to_json_array(const ShrinkInfo& shrink_info);

/// Parses the result of to_json_array(). Throws nlohmann::json::exception for other values.
ShrinkInfo parse_shrink_info(const nlohmann::json& numbers);

/// The part of a square of pixels that an image fills, starting at the upper left corner.
struct ValidRegion {
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t pixels() const { return rows * columns; }
  bool operator==(const ValidRegion&) const = default;
};

/// The segmentation masks of a sample: one for each mask token in the responses. Images are squares
/// of the model's side length; an image fills its square from the upper left corner.
struct SegmentationMasks {
  std::vector<int64_t> token_positions;      ///< [masks], ascending, indices of the tokens
  std::vector<int64_t> image_indices;        ///< [masks], rows of `pixels`
  std::vector<ValidRegion> valid_regions;    ///< [masks]
  std::vector<std::string> structure_names;  ///< [masks], may be empty strings
  at::Tensor pixels;                         ///< uint8 [images, 3, side, side]; undefined without masks
  at::Tensor targets;                        ///< uint8 [masks, side, side] of 0 and 1; undefined if unknown

  int64_t count() const { return static_cast<int64_t>(token_positions.size()); }
  bool empty() const { return token_positions.empty(); }
  /// Returns the number of pixels of all masks together, without padding.
  int64_t count_valid_pixels() const;
};

/// A conversation ready for the model: token ids, labels, pixels, and the positions of the vision
/// features.
struct Sample {
  int64_t index = 0;  ///< in the data set
  uint64_t seed = 0;  ///< for dropout; the Loader sets a new one each time it draws the sample
  std::string id;
  std::string task;
  int64_t task_index = 0;          ///< index of `task` in data::TaskTable of the run
  std::vector<int64_t> token_ids;  ///< [tokens]
  std::vector<char> label_mask;    ///< [tokens], 1 for tokens that enter the loss
  std::vector<float>
      label_weights;  ///< [tokens], weights of the labels in the loss, else 0; empty if all labels have 1
  std::vector<int64_t> image_token_positions;  ///< ascending, tokens that take the vision features
  /// [rows, channels, height, width] or [rows, channels, depth, height, width], see PixelRowShape.
  /// Undefined without media, or if their features were computed before. On the meta device in a
  /// dry run.
  at::Tensor pixel_values;
  SegmentationMasks masks;             ///< empty for families that do not predict masks
  std::vector<int64_t> modalities;     ///< [rows] for volumes, numbers that the family defines; 0 if unknown
  std::vector<PatchGrid> patch_grids;  ///< one for each image or video if rows are patches; otherwise empty
  std::vector<int64_t> position_ids;  ///< [kNumPositionAxes · tokens], axis by axis; if empty, 0, 1, 2, … on all axes
  int64_t num_images = 0;             ///< without videos and volumes
  int64_t num_videos = 0;
  int64_t num_volumes = 0;
  int64_t video_frames = 0;  ///< sampled frames of all videos together
  /// Peak host memory for decoding its media, in addition to bytes(): the maximum over the media.
  int64_t decode_bytes = 0;
  std::optional<ShrinkInfo> shrink_info;  ///< set if its media were shrunk to fit data.max_length
  /// Notices of the record, then of the processing, such as skipped frames or a blank image. Each
  /// kind occurs at most once. make_header_sample() finds only those that do not depend on pixels.
  std::vector<io::Notice> notices;

  /// Counts one more image, video or volume. `frames` is the number of sampled frames of a video.
  void add_medium(MediaKind kind, int64_t frames = 0);
  /// Returns the number of images, videos and volumes.
  int64_t num_media() const { return num_images + num_videos + num_volumes; }
  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t label_tokens() const;
  /// Returns the sum of the weights of its label tokens; label_tokens() if all are 1.
  double label_weight() const;
  /// Returns the bytes of host memory of its pixels and tokens.
  int64_t bytes() const;
};

/// The error of a sample that cannot be used. `reason` is a short fixed phrase that the ledger
/// counts by, such as "too long". The message names the sample and the fix.
class SampleError : public UserError {
 public:
  /// If `is_dropped`, the sample is dropped regardless of data.on_bad_sample.
  SampleError(std::string reason, const std::string& message, bool is_dropped = false)
      : UserError(ExitCode::kBadData, message), reason_(std::move(reason)), is_dropped_(is_dropped) {}
  const std::string& reason() const { return reason_; }
  bool is_dropped() const { return is_dropped_; }

 private:
  std::string reason_;
  bool is_dropped_;
};

/// The error of a sample with more than data.max_length tokens.
class SampleTooLongError final : public SampleError {
 public:
  SampleTooLongError(int64_t tokens, const std::string& message, bool is_dropped = false)
      : SampleError("too long", message, is_dropped), tokens_(tokens) {}
  int64_t tokens() const { return tokens_; }

 private:
  int64_t tokens_;
};

/// The number of positions that a model was trained with.
struct PositionLimit {
  int64_t max_positions = 0;
  std::string key;  ///< key of config.json with the number
};

/// The interface of the model families for converting records to samples. Thread-safe: loader
/// threads share one processor. `index` is the index of the record in the data set.
class SampleProcessor {
 public:
  virtual ~SampleProcessor() = default;

  /// Decodes the media, renders the chat template and tokenizes it. Throws SampleError, or another
  /// UserError with kBadData, if the record cannot be used.
  virtual Sample process(const io::Record& record, int64_t index) const = 0;

  /// Returns the same sample from the headers of the media only, with pixel_values on the meta
  /// device. For planning and checking, at the cost of a few small reads. Does not detect corrupt
  /// pixel data after a valid header.
  virtual Sample process_headers(const io::Record& record, int64_t index) const = 0;

  /// Returns the sample with randomly augmented images (data.augment). The augmentation depends on
  /// `seed` only. By default, images are not augmented.
  virtual Sample process_augmented(const io::Record& record, int64_t index, uint64_t /*seed*/) const {
    return process(record, index);
  }

  /// Returns the number of positions of the model if longer samples are trained on with a notice;
  /// nothing if the number is unknown or longer samples are rejected.
  virtual std::optional<PositionLimit> position_limit() const { return std::nullopt; }
};

/// Returns the sample of a record for training or evaluation. `augmentation_seed` is set in
/// training; without it, images are not augmented. Throws the errors of the processor, and
/// SampleError if the record is unusable or the sample has no label token. Thread-safe.
Sample make_sample(const SampleProcessor& processor, const io::Record& record, int64_t index,
                   std::optional<uint64_t> augmentation_seed = std::nullopt);

/// Returns the sample of SampleProcessor::process_headers() with the same checks and errors.
Sample make_header_sample(const SampleProcessor& processor, const io::Record& record, int64_t index);

}  // namespace vlmtrain::data

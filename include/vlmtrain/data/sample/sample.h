#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::data {

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

}  // namespace vlmtrain::data

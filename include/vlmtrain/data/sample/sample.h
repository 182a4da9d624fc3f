#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/dropout.h"

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

/// The segmentation masks of a micro-batch. All tensors are undefined if it has no masks.
struct MaskBatch {
  at::Tensor pixels;                       ///< uint8 [images, 3, side, side]
  at::Tensor targets;                      ///< uint8 [masks, side, side]; undefined if a sample's targets are unknown
  at::Tensor prediction_positions;         ///< int64 [masks], rows whose hidden state predicts the mask token
  at::Tensor image_indices;                ///< int64 [masks], rows of `pixels`
  std::vector<ValidRegion> valid_regions;  ///< [masks], on the host

  int64_t count() const { return static_cast<int64_t>(valid_regions.size()); }
};

/// A batch of samples whose tokens are concatenated without padding. Everything that depends on
/// values, such as the positions of images and labels, is computed on the host, so that a step
/// never synchronizes with the device to read them.
struct MicroBatch {
  at::Tensor token_ids;                ///< int64 [tokens]
  at::Tensor position_ids;             ///< int64 [tokens], from 0 in each sample; or [kNumPositionAxes, tokens]
  nn::Segments segments;               ///< one for each sample
  at::Tensor image_token_positions;    ///< int64 [image tokens], rows of token_ids that take the vision features
  at::Tensor pixel_values;             ///< concatenated Sample::pixel_values; undefined without pixels
  at::Tensor modalities;               ///< int64 [rows], see Sample::modalities; undefined without volumes
  std::vector<PatchGrid> patch_grids;  ///< on the host; empty unless pixel rows are patches
  at::Tensor label_positions;          ///< int64 [labels], rows whose hidden state predicts the label
  at::Tensor labels;                   ///< int64 [labels], token ids
  at::Tensor label_weights;            ///< fp32 [labels], weights in the loss; undefined if all are 1
  MaskBatch masks;
  at::Tensor label_task_indices;  ///< int64 [labels], Sample::task_index; undefined if not requested
  std::vector<nn::DropoutSegment> text_dropout_segments;  ///< dropout units of the text: samples, by tokens
  std::vector<nn::DropoutSegment>
      pixel_dropout_segments;  ///< dropout units of the tower: frames by patches, or pixel rows
  int64_t samples = 0;
  int64_t num_media = 0;  ///< images, videos and volumes
  int64_t num_volumes = 0;
  double label_weight_sum = 0;  ///< sum of the weights of the labels

  int64_t tokens() const { return segments.rows; }
  int64_t label_tokens() const { return labels.numel(); }

  /// Returns all tensors that are copied to the device. Some may be undefined.
  std::array<at::Tensor*, 14> tensors();

  /// Returns a copy on the device. The copy to a CUDA device is asynchronous, from pinned memory.
  MicroBatch to(at::Device device) const;
};

/// Concatenates samples to a micro-batch on the CPU. Sets label_task_indices if `with_tasks`.
/// REQUIRES: at least one sample; pixel rows of equal type and shape; either all samples with
/// pixels have grids or none.
MicroBatch collate(std::span<const Sample> samples, bool with_tasks = false);

/// Does the same for the samples at `indices`, in the order of `indices`.
MicroBatch collate(std::span<const Sample> samples, std::span<const int64_t> indices, bool with_tasks = false);

}  // namespace vlmtrain::data

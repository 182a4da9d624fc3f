#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/dropout.h"

namespace vlmtrain::data {

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

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "vlmtrain/data/sample.h"
#include "vlmtrain/nn/dropout.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::data {

/// What the samples of a micro-batch are to draw. The tensors are undefined without masks.
struct MaskBatch {
  at::Tensor pixels;     ///< as Masks::pixels, of all pictures
  at::Tensor targets;    ///< as Masks::targets; undefined where a sample's are not known
  at::Tensor positions;  ///< int64 [masks], rows of token_ids that predict a mask's token: their hidden state draws it
  at::Tensor image_indices;                ///< int64 [masks], rows of `pixels`
  std::vector<ValidRegion> valid_regions;  ///< [masks], on the host

  int64_t count() const { return static_cast<int64_t>(valid_regions.size()); }
};

/// Some samples end to end, without padding. Everything that depends on values (where image features go, which tokens
/// are labels) is computed here on the host, so that the step reads nothing back from the device.
struct MicroBatch {
  at::Tensor token_ids;          ///< int64 [tokens]
  at::Tensor position_ids;       ///< int64 [tokens], place within the own sample, or [kPositionAxes, tokens]
  nn::Segments segments;         ///< one a sample
  at::Tensor image_positions;    ///< int64 [image tokens], rows of token_ids that take the vision features, in order
  at::Tensor pixel_values;       ///< as Sample::pixel_values, of all; undefined if no sample has any
  at::Tensor modalities;         ///< int64 [rows], as Sample::modalities; undefined without volumes
  std::vector<PatchGrid> grids;  ///< of rows that are patches, in order; on the host. Empty: each row is seen alone
  at::Tensor label_positions;    ///< int64 [labels], rows whose hidden state predicts the label
  at::Tensor labels;             ///< int64 [labels], the token that follows that row
  MaskBatch masks;
  at::Tensor label_tasks;  ///< int64 [labels], the task_number of the label's sample; undefined where not wanted
  std::vector<nn::DropoutSegment> sample_units;  ///< the samples, by tokens
  std::vector<nn::DropoutSegment> pixel_units;   ///< the frames of the grids, by patches; else the rows of pixels
  int64_t samples = 0;
  int64_t num_media = 0;    ///< media of all kinds
  int64_t num_volumes = 0;  ///< of the images

  int64_t tokens() const { return segments.rows; }
  int64_t label_tokens() const { return labels.numel(); }

  /// Those that are wanted on the device; some may be undefined.
  std::array<at::Tensor*, 13> tensors();

  /// Copies to the device without waiting (from pinned memory if `device` is CUDA).
  MicroBatch to(at::Device device) const;
};

/// REQUIRES: at least one sample; pixel rows of one type and shape; all with grids or none.
MicroBatch collate(std::span<const Sample> samples, bool with_tasks = false);

/// The same of the samples at these places, in their order.
MicroBatch collate(std::span<const Sample> samples, std::span<const int64_t> indices, bool with_tasks = false);

}  // namespace vlmtrain::data

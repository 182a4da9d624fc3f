#pragma once

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <vector>

#include "parity/temporary_folder.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Sample of volumes with the modality of each.
struct VolumeSample {
  data::Sample sample;
  std::vector<int64_t> modalities;
};

/// Folder with a random checkpoint of the preset brain-llava-tiny, and samples for it.
class VolumeSamples {
 public:
  static constexpr int64_t kTokens = 27;  ///< per volume

  VolumeSamples() { write_preset_checkpoint("brain-llava-tiny", {}, /*seed=*/3, checkpoint()); }

  std::filesystem::path checkpoint() const { return folder_.path() / "model"; }

  /// Returns a sample with a volume of side³ voxels for each of `modalities`, and random words.
  static VolumeSample sample(const std::vector<int64_t>& modalities, int64_t text_tokens, int64_t num_labels,
                             int64_t side = 48) {
    const auto volumes = static_cast<int64_t>(modalities.size());
    data::Sample result;
    result.num_volumes = volumes;
    const at::Tensor ids = at::randint(3, 600, {text_tokens + volumes * kTokens}, at::kLong);
    result.token_ids.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
    result.label_mask.assign(result.token_ids.size(), 0);
    std::fill(result.label_mask.end() - num_labels, result.label_mask.end(), 1);
    result.image_token_positions.resize(static_cast<size_t>(volumes * kTokens));
    std::iota(result.image_token_positions.begin(), result.image_token_positions.end(), 1);
    for (const int64_t position : result.image_token_positions) result.token_ids[static_cast<size_t>(position)] = 600;
    if (volumes > 0) result.pixel_values = at::randn({volumes, 1, side, side, side});
    return {std::move(result), modalities};
  }

  /// Returns six samples of zero to three volumes.
  static std::vector<VolumeSample> samples() {
    return {sample({1}, 9, 4),       sample({}, 12, 5),   sample({2, 0}, 7, 3),
            sample({1, 2, 1}, 8, 4), sample({2}, 20, 11), sample({}, 5, 2)};
  }

  /// Returns the tower's input of the samples.
  static VisionInput make_input(const data::MicroBatch& batch, std::span<const VolumeSample> samples) {
    std::vector<int64_t> modalities;
    for (const auto& volume_sample : samples)
      modalities.insert(modalities.end(), volume_sample.modalities.begin(), volume_sample.modalities.end());
    return {.pixel_values = batch.pixel_values,
            .patch_grids = {},
            .modalities = modalities.empty() ? at::Tensor() : at::tensor(modalities, at::kLong)};
  }

  static data::MicroBatch make_batch(std::span<const VolumeSample> samples) {
    std::vector<data::Sample> data_samples;
    data_samples.reserve(samples.size());
    for (const auto& volume_sample : samples) data_samples.push_back(volume_sample.sample);
    return data::collate(data_samples);
  }

 private:
  parity::TemporaryFolder folder_;
};

}  // namespace vlmtrain::models

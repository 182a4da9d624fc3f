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
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// A sample of volumes, and the modality of each.
struct VolumeSample {
  data::Sample sample;
  std::vector<int64_t> modalities;
};

/// A folder with the checkpoint of the preset brain-llava-tiny, random, and samples for it.
class VolumeSamples {
 public:
  static constexpr int64_t kTokens = 27;  ///< of a volume

  VolumeSamples() { write_preset("brain-llava-tiny", {}, /*seed=*/3, checkpoint()); }

  std::filesystem::path checkpoint() const { return folder_.path() / "model"; }

  /// With a volume of side³ voxels for each of `modalities`, and random words.
  static VolumeSample sample(const std::vector<int64_t>& modalities, int64_t words, int64_t labels, int64_t side = 48) {
    const auto volumes = static_cast<int64_t>(modalities.size());
    data::Sample made;
    made.images = made.volumes = volumes;
    const at::Tensor ids = at::randint(3, 600, {words + volumes * kTokens}, at::kLong);
    made.token_ids.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
    made.is_label.assign(made.token_ids.size(), 0);
    std::fill(made.is_label.end() - labels, made.is_label.end(), 1);
    made.image_token_positions.resize(static_cast<size_t>(volumes * kTokens));
    std::iota(made.image_token_positions.begin(), made.image_token_positions.end(), 1);
    for (const int64_t place : made.image_token_positions) made.token_ids[static_cast<size_t>(place)] = 600;
    if (volumes > 0) made.pixel_values = at::randn({volumes, 1, side, side, side});
    return {std::move(made), modalities};
  }

  /// Six, of no volume to three.
  static std::vector<VolumeSample> samples() {
    return {sample({1}, 9, 4),       sample({}, 12, 5),   sample({2, 0}, 7, 3),
            sample({1, 2, 1}, 8, 4), sample({2}, 20, 11), sample({}, 5, 2)};
  }

  /// What the tower sees of them.
  static VisionInput input_of(const data::MicroBatch& batch, std::span<const VolumeSample> samples) {
    std::vector<int64_t> modalities;
    for (const auto& one : samples) modalities.insert(modalities.end(), one.modalities.begin(), one.modalities.end());
    return {.pixel_values = batch.pixel_values,
            .grids = {},
            .modalities = modalities.empty() ? at::Tensor() : at::tensor(modalities, at::kLong)};
  }

  static data::MicroBatch batch_of(std::span<const VolumeSample> samples) {
    std::vector<data::Sample> plain;
    plain.reserve(samples.size());
    for (const auto& one : samples) plain.push_back(one.sample);
    return data::collate(plain);
  }

 private:
  parity::TemporaryFolder folder_;
};

}  // namespace vlmtrain::models

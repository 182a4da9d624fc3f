#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "engine/small_step.h"
#include "planner/dry_run/cpu_dry_run.h"
#include "planner/dry_run/protocol.h"
#include "vlmtrain/memory/meta_memory.h"
#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::planner {
namespace {

constexpr int64_t kVolumes = 2, kVolumeSamples = 3, kHidden = 8;

data::SampleShape make_volume_shape(at::ScalarType dtype) {
  return {.tokens = 12,
          .label_tokens = 4,
          .image_tokens = kVolumes,
          .pixel_rows = kVolumes,
          .row = {.dtype = dtype, .channels = 1, .depth = 32, .height = 48, .width = 64},
          .num_volumes = kVolumes};
}

/// A family with media of its own: one Linear turns each volume into a token.
class VolumeModel final : public models::VisionLanguageModel {
 public:
  VolumeModel(const data::PixelRowShape& row, const memory::MetaMemoryTracker& memory)
      : VisionLanguageModel(nn::ParameterSettings{at::TensorOptions(at::kFloat).device(at::kMeta)}),
        memory_(memory),
        projection_(nn::ParameterScope(parameters(), nn::Component::kProjector, "projection"),
                    row.channels * row.depth * row.height * row.width, kHidden, true),
        output_(nn::ParameterScope(parameters(), nn::Component::kLanguageModel, "output")
                    .add_parameter("weight", {16, kHidden}, nn::InitialValues::kaiming(kHidden))) {}

  models::ImageFeatures get_image_features(const models::VisionInput& vision,
                                           bool /*with_patch_features*/) const override {
    live_bytes = memory_.live_bytes();
    last_row = data::PixelRowShape::from_tensor(vision.pixel_values);
    rows = vision.pixel_values.size(0);
    return {.features = projection_(vision.pixel_values.to(at::kFloat).flatten(1))};
  }
  models::ModelOutput compute_hidden_states(const data::MicroBatch& /*batch*/,
                                            const models::ImageFeatures& image_features,
                                            const models::OutputRequest& request,
                                            nn::GenerationCache* /*cache*/) const override {
    return {.hidden_states = image_features.features.index_select(0, request.positions)};
  }
  nn::OutputProjection output_projection() const override { return {.weight = output_}; }
  int64_t num_vision_blocks() const override { return 0; }
  int64_t num_language_blocks() const override { return 0; }

  mutable data::PixelRowShape last_row;
  mutable int64_t rows = 0, live_bytes = 0;

 private:
  const memory::MetaMemoryTracker& memory_;
  nn::Linear projection_;
  at::Tensor output_;
};

/// The live bytes at the start of the tower, in a step whose samples came through the planner's
/// protocol.
int64_t measure_bytes_before_tower(at::ScalarType dtype) {
  DryRunRequest request;
  request.steps = {{{make_volume_shape(dtype), kVolumeSamples}}};
  const auto received = nlohmann::json::parse(nlohmann::json(request).dump()).get<DryRunRequest>();
  const SampleGroup& group = received.steps.at(0).at(0);
  EXPECT_EQ(group.shape, make_volume_shape(dtype));

  register_cpu_meta_kernels();
  const memory::MetaMemoryTracker memory;
  VolumeModel model(group.shape.row, memory);
  const std::vector<data::Sample> samples(static_cast<size_t>(group.count), data::make_meta_sample(group.shape));
  engine::accumulate_gradients(model, samples, {.micro_batch_size = kVolumeSamples});
  EXPECT_EQ(model.last_row, group.shape.row);
  EXPECT_EQ(model.rows, kVolumeSamples * kVolumes);
  return model.live_bytes;
}

TEST(VolumeDryRunTest, UsesTheDataTypeOfTheVolumes) {
  // The tower's copy exists in addition to the samples.
  const int64_t values = 32 * 48 * 64 * kVolumeSamples * kVolumes;
  const int64_t uint8_bytes = measure_bytes_before_tower(at::kByte);
  EXPECT_EQ(measure_bytes_before_tower(at::kShort) - uint8_bytes,
            (measure_bytes_before_tower(at::kFloat) - uint8_bytes) / 3);
  EXPECT_GE(measure_bytes_before_tower(at::kFloat) - uint8_bytes, values * 3);
}

}  // namespace
}  // namespace vlmtrain::planner

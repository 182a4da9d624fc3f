#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/brain_llava/family.h"
#include "models/presets.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain {
namespace {

/// The tower of brain-llava-7b with two blocks, its pooling and a projector, with volumes smaller
/// than the position tables.
class VolumeModelOnGpuTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  static models::brain_llava::Config config() {
    auto json = nlohmann::json::parse(models::resources().at("brain-llava-7b/config.json"));
    json["vision_config"]["num_hidden_layers"] = 2;
    json["text_config"] = nlohmann::json::parse(models::resources().at("brain-llava-tiny/config.json"))["text_config"];
    json["image_token_id"] = 600;
    return models::brain_llava::Config::from_json(json, "preset");
  }

  void run_forward_backward(const models::VisionLanguageModel& model, bool has_modalities) const {
    const at::Tensor volumes = at::empty({3, 1, 96, 80, 64}, options_.dtype(at::kFloat));
    const at::Tensor modalities = at::zeros({3}, options_.dtype(at::kLong));
    const auto features = model.get_all_image_features(
        {.pixel_values = volumes, .patch_grids = {}, .modalities = has_modalities ? modalities : at::Tensor()},
        /*rows_per_pass=*/2, /*with_patch_features=*/false);
    EXPECT_EQ(features.features.size(0), 3 * 64);
    torch::autograd::backward({features.features.sum()}, {});
  }

  const at::TensorOptions options_ = at::TensorOptions(GetParam()).device(memory::open_device("cuda:0"));
};

TEST_P(VolumeModelOnGpuTest, LaunchesAreAcceptedAndNeverSynchronize) {
  models::brain_llava::Model model(config(), nn::ParameterSettings{.options = options_});
  model.set_recompute_block_counts({.vision = 1, .language = 0});
  for (const bool has_modalities : {true, false, true}) {
    virtual_gpu().reset();
    run_forward_backward(model, has_modalities);
    expect_accepted_without_synchronization();
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, VolumeModelOnGpuTest, testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& instance) { return c10::toString(instance.param); });

}  // namespace
}  // namespace vlmtrain

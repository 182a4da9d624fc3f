#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/network/mask_decoder.h"
#include "models/network/sam_vit.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain {
namespace {

/// SAM's encoder, decoder and mask loss: two blocks of ViT-B's width on full-size images.
class MaskModelOnGpuTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  MaskModelOnGpuTest() {
    config_.num_layers = 2;
    config_.global_attention_blocks = {1};
  }

  void run_forward_backward(const models::SamVit& encoder, const models::MaskDecoder& decoder) const {
    const at::Tensor pixels = at::empty({1, 3, config_.image_size, config_.image_size}, options_);
    const at::Tensor prompts = at::empty({kMasks, config_.output_channels}, options_).set_requires_grad(true);
    const at::Tensor image_indices = at::zeros({kMasks}, options_.dtype(at::kLong));
    const at::Tensor targets = at::empty({kMasks, config_.image_size, config_.image_size}, options_.dtype(at::kByte));
    const at::Tensor features = encoder(pixels, /*recomputed_blocks=*/1);
    const at::Tensor logits = decoder(features, config_.patches_per_side(), prompts, image_indices);
    const auto loss = nn::mask_loss(logits, targets, {{1024, 1024}, {700, 1024}, {1024, 333}}, 2, 0.5, 1e6, kMasks);
    torch::autograd::backward({loss.loss}, {});
  }

  static constexpr int64_t kMasks = 3;
  const at::TensorOptions options_ = at::TensorOptions(GetParam()).device(memory::open_device("cuda:0"));
  models::SamVitConfig config_;
};

TEST_P(MaskModelOnGpuTest, LaunchesAreAcceptedAndNeverSynchronize) {
  nn::ParameterStore store(options_);
  const nn::ParameterScope scope(store, nn::Component::kMaskEncoder, "sam");
  const models::SamVit encoder(scope / "vision_encoder", config_);
  const models::MaskDecoder decoder(scope, models::MaskDecoderConfig());
  for (int i = 0; i < 2; ++i) {
    virtual_gpu().reset();
    run_forward_backward(encoder, decoder);
    expect_accepted_without_synchronization();
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, MaskModelOnGpuTest, testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& instance) { return c10::toString(instance.param); });

}  // namespace
}  // namespace vlmtrain

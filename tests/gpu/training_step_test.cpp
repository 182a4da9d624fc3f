#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain {
namespace {

/// Needs a real GPU; a virtual one computes nothing.
class GpuTrainingStep : public testing::Test {
 protected:
  void SetUp() override {
    if (memory::open_device("auto").is_cpu()) GTEST_SKIP() << "there is no GPU";
    if (vgpu::attached() != nullptr) GTEST_SKIP() << "the GPU is a virtual one";
    device_ = memory::open_device("cuda:0");
    const auto folder = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/mixed_batch";
    checkpoint_ = folder / "checkpoint";
    models::ProcessorSettings settings;
    settings.image_root = folder / "images";
    const auto processor = models::load_processor(checkpoint_, settings);
    const auto records = io::read_dataset(folder / "conversations.json");
    for (size_t i = 0; i < records.size(); ++i) {
      samples_.push_back(processor->process(records[i], static_cast<int64_t>(i)));
    }
  }

  std::unique_ptr<models::VisionLanguageModel> load(at::Device device, at::ScalarType dtype) const {
    auto model = models::build_model(checkpoint_, device, dtype);
    models::load_weights(*model, checkpoint_);
    return model;
  }

  at::Device device_ = at::kCPU;
  std::filesystem::path checkpoint_;
  std::vector<data::Sample> samples_;
};

TEST_F(GpuTrainingStep, Fp32LossAndGradientsAreTheCpus) {
  const auto on_cpu = load(at::kCPU, at::kFloat);
  const auto on_gpu = load(device_, at::kFloat);
  const auto cpu = engine::accumulate_gradients(*on_cpu, samples_, {.micro_batch_size = 2});
  const auto gpu = engine::accumulate_gradients(*on_gpu, samples_, {.device = device_, .micro_batch_size = 2});
  EXPECT_NEAR(gpu.loss.item<double>(), cpu.loss.item<double>(), 1e-5 * cpu.loss.item<double>());
  double largest = 0;
  for (const auto& parameter : on_cpu->parameters().all()) {
    largest = std::max(largest, parameter.tensor.grad().abs().max().item<double>());
  }
  for (size_t i = 0; i < on_cpu->parameters().all().size(); ++i) {
    const auto& expected = on_cpu->parameters().all()[i];
    const at::Tensor found = on_gpu->parameters().all()[i].tensor.grad().cpu();
    const double difference = found.sub(expected.tensor.grad()).abs().max().item<double>();
    EXPECT_LT(difference, 1e-4 * largest) << expected.name;
  }
}

TEST_F(GpuTrainingStep, Bf16LearnsTheBatch) {
  const auto model = load(device_, at::kBFloat16);
  engine::AdamW optimizer(model->parameters(), {});
  const engine::LearningRates rates{1e-3, 1e-3, 1e-3};
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    const auto result =
        engine::optimizer_step(*model, optimizer, samples_, rates, {.device = device_, .micro_batch_size = 2});
    losses.push_back(result.loss.item<double>());
  }
  EXPECT_LT(losses.back(), 0.9 * losses.front());
}

}  // namespace
}  // namespace vlmtrain

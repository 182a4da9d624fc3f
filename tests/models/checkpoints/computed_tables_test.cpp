#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "models/checkpoint_copy.h"
#include "models/checkpoints/tensor_names.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

at::Tensor compute_frequencies(double theta, int64_t count) {
  return at::pow(theta, at::arange(count, at::kDouble) / static_cast<double>(-count)).to(at::kFloat);
}

TEST(ComputedTables, DefaultTablesFollowFromConfig) {
  const nlohmann::json config{{"text_config", {{"rope_theta", 5e5}}}, {"rope_parameters", {{"x_theta", 1e6}}}};
  const std::string name = "model.rotary_emb.inv_freq";
  for (const double theta : {1e4, 5e5, 1e6})
    EXPECT_TRUE(is_default_table(name, compute_frequencies(theta, 32), config)) << theta;
  EXPECT_TRUE(is_default_table(name, compute_frequencies(5e5, 32).to(at::kBFloat16), config));
  EXPECT_FALSE(is_default_table(name, compute_frequencies(2e5, 32), config));
  EXPECT_FALSE(is_default_table(name, compute_frequencies(5e5, 32) / 8, config)) << "an extended context";
  EXPECT_TRUE(is_default_table("x.embeddings.position_ids", at::arange(9).unsqueeze(0), config));
  EXPECT_FALSE(is_default_table("x.embeddings.position_ids", at::arange(1, 10).unsqueeze(0), config));
}

TEST(ComputedTables, DifferentTableIsNamed) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"text_only", "model.text_model.layers.0.self_attn.rotary_emb.inv_freq"},
      {"llava_clip_llama", "language_model.model.layers.0.self_attn.rotary_emb.inv_freq"},
      {"nanovlm_tiles", "decoder.rotary_embd.inv_freq"}};
  for (const auto& [checkpoint, table] : cases) {
    const CheckpointCopy copy(checkpoint);
    io::NamedTensors tensors;
    const io::CheckpointTensors stored_tensors(copy.path());
    for (const auto& name : stored_tensors.names()) {
      if (name != table) tensors.emplace_back(name, stored_tensors.tensor(name).clone());
    }
    tensors.emplace_back(table, compute_frequencies(123, 4));
    io::write_safetensors(copy.path() / "model.safetensors", tensors);
    const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
    const CapturedLog log;
    load_weights(*model, copy.path());
    EXPECT_THAT(log.text(), AllOf(HasSubstr(table), HasSubstr("the computed ones are used"))) << checkpoint;
    EXPECT_EQ(log.lines(), 1) << log.text();
  }
}

}  // namespace
}  // namespace vlmtrain::models

#include "vlmtrain/models/base_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/captured_log.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint_contents.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

io::NamedTensors read_tensors(const fs::path& folder) {
  const io::CheckpointTensors file(folder);
  io::NamedTensors tensors;
  for (const auto& name : file.names()) tensors.emplace_back(name, file.tensor(name).clone());
  return tensors;
}

void replace_weights(const fs::path& folder, const io::NamedTensors& tensors, int64_t shard_bytes) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().find(".safetensors") != std::string::npos) fs::remove(entry.path());
  }
  io::write_checkpoint_tensors(folder, tensors, shard_bytes);
}

/// Fingerprints of checkpoints of several families.
class BaseFingerprint : public testing::TestWithParam<const char*> {};

TEST_P(BaseFingerprint, IsIndependentOfShardsAndOrder) {
  const CheckpointCopy copy(GetParam());
  const std::string fingerprint = compute_base_fingerprint(copy.path());
  EXPECT_EQ(fingerprint.size(), 16U);
  auto tensors = read_tensors(copy.path());
  replace_weights(copy.path(), tensors, 20'000);
  EXPECT_EQ(compute_base_fingerprint(copy.path()), fingerprint) << "in shards";
  std::ranges::reverse(tensors);
  replace_weights(copy.path(), tensors, io::kDefaultMaxShardBytes);
  EXPECT_EQ(compute_base_fingerprint(copy.path()), fingerprint) << "in another order";
}

TEST_P(BaseFingerprint, ChangesWithNamesTypesAndValues) {
  const CheckpointCopy copy(GetParam());
  const std::string fingerprint = compute_base_fingerprint(copy.path());
  const auto tensors = read_tensors(copy.path());
  for (const size_t index : {size_t{0}, tensors.size() / 2, tensors.size() - 1}) {
    auto edited = tensors;
    edited[index].second = edited[index].second + 1;
    replace_weights(copy.path(), edited, io::kDefaultMaxShardBytes);
    EXPECT_NE(compute_base_fingerprint(copy.path()), fingerprint) << edited[index].first;
  }
  auto converted = tensors;
  for (auto& [name, tensor] : converted) tensor = tensor.to(tensor.scalar_type() == at::kHalf ? at::kFloat : at::kHalf);
  replace_weights(copy.path(), converted, io::kDefaultMaxShardBytes);
  EXPECT_NE(compute_base_fingerprint(copy.path()), fingerprint) << "in another type";
}

INSTANTIATE_TEST_SUITE_P(Families, BaseFingerprint,
                         testing::Values("mixed_batch", "qwen2_5_vl_mixed", "llava_siglip_qwen2", "gemma3_saved",
                                         "gemma4_tower", "gemma4_per_layer"),
                         [](const auto& family) { return std::string(family.param); });

TEST(AdapterBaseFingerprint, MismatchIsWarnedAbout) {
  const CheckpointCopy base("qwen2_5_vl_mixed"), adapter("qwen2_5_vl_mixed");
  fs::remove_all(adapter.path());
  fs::create_directories(adapter.path());
  const auto model =
      build_model(base.path(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 2, .target_modules = {"all-linear"}});
  load_weights(*model, base.path());
  initialize_adapter(*model, 1);
  const BaseWeights weights(base.path());
  auto adapter_weights = make_adapter_contents(*model, {.base = &weights});
  adapter_weights.write(adapter.path(), io::kDefaultMaxShardBytes);
  EXPECT_EQ(read_adapter_base_fingerprint(adapter.path()), std::nullopt) << "as older versions write them";
  EXPECT_FALSE(warn_on_base_fingerprint_mismatch(adapter.path(), base.path()));
  adapter_weights = make_adapter_contents(*model, {.base = &weights});
  adapter_weights.base_fingerprint = compute_base_fingerprint(weights);
  adapter_weights.write(adapter.path(), io::kDefaultMaxShardBytes);
  EXPECT_EQ(read_adapter_base_fingerprint(adapter.path()), compute_base_fingerprint(base.path()));
  EXPECT_FALSE(warn_on_base_fingerprint_mismatch(adapter.path(), base.path()));
  auto tensors = read_tensors(base.path());
  for (auto& [name, tensor] : tensors) tensor = tensor * 2;
  replace_weights(base.path(), tensors, io::kDefaultMaxShardBytes);
  const CapturedLog log;
  EXPECT_TRUE(warn_on_base_fingerprint_mismatch(adapter.path(), base.path()));
  EXPECT_THAT(log.text(), AllOf(HasSubstr(adapter.path().string()), HasSubstr(base.path().string()),
                                HasSubstr("trained on other weights")));
}

}  // namespace
}  // namespace vlmtrain::models

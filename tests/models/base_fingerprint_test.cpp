#include "vlmtrain/models/base_fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/captured_log.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/weights_to_save.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

io::NamedTensors tensors_of(const fs::path& folder) {
  const io::CheckpointTensors file(folder);
  io::NamedTensors tensors;
  for (const auto& name : file.names()) tensors.emplace_back(name, file.tensor(name).clone());
  return tensors;
}

void put_weights(const fs::path& folder, const io::NamedTensors& tensors, int64_t shard_bytes) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().find(".safetensors") != std::string::npos) fs::remove(entry.path());
  }
  io::write_checkpoint_tensors(folder, tensors, shard_bytes);
}

/// Of several families.
class BaseFingerprint : public testing::TestWithParam<const char*> {};

TEST_P(BaseFingerprint, IsThatOfTheWeightsWhereverTheyAre) {
  const CheckpointCopy copy(GetParam());
  const std::string before = base_fingerprint(copy.path());
  EXPECT_EQ(before.size(), 16U);
  auto tensors = tensors_of(copy.path());
  put_weights(copy.path(), tensors, 20'000);
  EXPECT_EQ(base_fingerprint(copy.path()), before) << "in shards";
  std::ranges::reverse(tensors);
  put_weights(copy.path(), tensors, io::kDefaultShardBytes);
  EXPECT_EQ(base_fingerprint(copy.path()), before) << "in another order";
}

TEST_P(BaseFingerprint, ChangesWithNamesTypesAndValues) {
  const CheckpointCopy copy(GetParam());
  const std::string before = base_fingerprint(copy.path());
  const auto tensors = tensors_of(copy.path());
  for (const size_t changed : {size_t{0}, tensors.size() / 2, tensors.size() - 1}) {
    auto others = tensors;
    others[changed].second = others[changed].second + 1;
    put_weights(copy.path(), others, io::kDefaultShardBytes);
    EXPECT_NE(base_fingerprint(copy.path()), before) << others[changed].first;
  }
  auto half = tensors;
  for (auto& [name, tensor] : half) tensor = tensor.to(tensor.scalar_type() == at::kHalf ? at::kFloat : at::kHalf);
  put_weights(copy.path(), half, io::kDefaultShardBytes);
  EXPECT_NE(base_fingerprint(copy.path()), before) << "in another type";
}

INSTANTIATE_TEST_SUITE_P(Families, BaseFingerprint,
                         testing::Values("mixed_batch", "qwen2_5_vl_mixed", "llava_siglip_qwen2", "gemma3_saved"),
                         [](const auto& family) { return std::string(family.param); });

TEST(FingerprintOfAdaptersBase, IsNamedWhereItIsAnother) {
  const CheckpointCopy base("qwen2_5_vl_mixed"), adapter("qwen2_5_vl_mixed");
  fs::remove_all(adapter.path());
  fs::create_directories(adapter.path());
  const auto model =
      build_model(base.path(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 2, .target_modules = {"all-linear"}});
  load_weights(*model, base.path());
  initialize_adapter(*model, 1);
  const BaseWeights weights(base.path());
  auto saved = adapter_to_save(*model, {.base = &weights});
  saved.write(adapter.path(), io::kDefaultShardBytes);
  EXPECT_EQ(fingerprint_of_adapters_base(adapter.path()), std::nullopt) << "as older versions write them";
  EXPECT_FALSE(warn_of_other_base(adapter.path(), base.path()));
  saved = adapter_to_save(*model, {.base = &weights});
  saved.base_fingerprint = base_fingerprint(weights);
  saved.write(adapter.path(), io::kDefaultShardBytes);
  EXPECT_EQ(fingerprint_of_adapters_base(adapter.path()), base_fingerprint(base.path()));
  EXPECT_FALSE(warn_of_other_base(adapter.path(), base.path()));
  auto tensors = tensors_of(base.path());
  for (auto& [name, tensor] : tensors) tensor = tensor * 2;
  put_weights(base.path(), tensors, io::kDefaultShardBytes);
  const CapturedLog log;
  EXPECT_TRUE(warn_of_other_base(adapter.path(), base.path()));
  EXPECT_THAT(log.text(), AllOf(HasSubstr(adapter.path().string()), HasSubstr(base.path().string()),
                                HasSubstr("trained on other weights")));
}

}  // namespace
}  // namespace vlmtrain::models

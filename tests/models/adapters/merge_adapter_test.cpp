#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

class MergeAdapterTest : public testing::Test {
 protected:
  /// Converts the base to `dtype`.
  void convert_base(at::ScalarType dtype) const {
    const auto file = adapter_.base() / "model.safetensors";
    io::NamedTensors tensors;
    {
      const io::SafetensorsFile base_tensors(file);
      for (const auto& name : base_tensors.names()) tensors.emplace_back(name, base_tensors.tensor(name).to(dtype));
    }
    io::write_safetensors(file, tensors);
  }
  void scale_adapter(double factor) const {
    auto tensors = adapter_.tensors();
    for (auto& [name, tensor] : tensors) tensor = tensor * factor;
    adapter_.write(tensors);
  }
  MergeStats merge(const MergeSettings& settings = {}) const {
    std::filesystem::remove_all(out_);
    return merge_adapter(adapter_.path(), out_, settings);
  }

  const AdapterFolder adapter_{"mixed_batch"};
  const std::filesystem::path out_ = adapter_.make_path("merged");
};

TEST_F(MergeAdapterTest, CountsWeightsUnchangedByRounding) {
  scale_adapter(1e-3);
  EXPECT_EQ(merge().num_rounded_away_elements, 0);
  convert_base(at::kBFloat16);
  const MergeStats bf16_stats = merge();
  EXPECT_GT(bf16_stats.num_changed_elements, 0);
  EXPECT_GT(bf16_stats.num_rounded_away_elements, bf16_stats.num_changed_elements / 2);
  const MergeStats fp32_stats = merge({.dtype = at::kFloat});
  EXPECT_EQ(fp32_stats.num_changed_elements, bf16_stats.num_changed_elements);
  EXPECT_EQ(fp32_stats.num_rounded_away_elements, 0);
}

TEST_F(MergeAdapterTest, IsWrittenInRequestedDtype) {
  convert_base(at::kBFloat16);
  for (const auto& [dtype, name] :
       {std::pair{at::kFloat, "float32"}, std::pair{at::kHalf, "float16"}, std::pair{at::kBFloat16, "bfloat16"}}) {
    merge({.dtype = dtype});
    const io::CheckpointTensors tensors(out_);
    for (const auto& tensor : tensors.names()) EXPECT_EQ(tensors.info(tensor).dtype, dtype) << tensor;
    const auto config = io::read_json(out_ / "config.json");
    EXPECT_EQ(config.value(config.contains("torch_dtype") ? "torch_dtype" : "dtype", ""), name);
    EXPECT_NO_THROW(load_model(out_, at::kCPU, at::kFloat));
  }
}

TEST_F(MergeAdapterTest, OverflowIsRefused) {
  convert_base(at::kHalf);
  scale_adapter(1e4);
  EXPECT_THAT(get_error_message([&] { merge(); }),
              AllOf(HasSubstr("q_proj.weight"), HasSubstr("F16"), HasSubstr("--dtype float32")));
  EXPECT_FALSE(std::filesystem::exists(out_));
  merge({.dtype = at::kFloat});
  EXPECT_NO_THROW(load_model(out_, at::kCPU, at::kFloat));
}

TEST_F(MergeAdapterTest, InfiniteValuesAreRefused) {
  auto tensors = adapter_.tensors();
  tensors.begin()->second.fill_(std::numeric_limits<float>::infinity());
  adapter_.write(tensors);
  const auto expected_message = AllOf(HasSubstr(tensors.begin()->first), HasSubstr("non-finite"));
  EXPECT_THAT(get_error_message([&] { merge(); }), expected_message);
  EXPECT_THAT(get_error_message([&] { adapter_.load(); }), expected_message);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(MergeAdapterTest, RemovesQuantizationConfig) {
  adapter_.base_copy().edit("config.json", [](auto& content) {
    content["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  });
  merge();
  EXPECT_FALSE(io::read_json(out_ / "config.json").contains("quantization_config"));
}

TEST_F(MergeAdapterTest, KeepsChatTemplateOfBase) {
  std::filesystem::remove(adapter_.path() / "chat_template.jinja");
  adapter_.edit("tokenizer_config.json", [](auto& content) { content["note"] = 1; });
  merge();
  EXPECT_EQ(io::read_file(out_ / "chat_template.jinja"), io::read_file(adapter_.base() / "chat_template.jinja"));
}

}  // namespace
}  // namespace vlmtrain::models

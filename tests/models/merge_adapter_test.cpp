#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

class MergedAdapter : public testing::Test {
 protected:
  /// The base in another type.
  void convert_base(at::ScalarType dtype) const {
    const auto file = adapter_.base() / "model.safetensors";
    io::NamedTensors tensors;
    {
      const io::SafetensorsFile whole(file);
      for (const auto& name : whole.names()) tensors.emplace_back(name, whole.tensor(name).to(dtype));
    }
    io::write_safetensors(file, tensors);
  }
  void scale_adapter(double factor) const {
    auto tensors = adapter_.tensors();
    for (auto& [name, tensor] : tensors) tensor = tensor * factor;
    adapter_.put(tensors);
  }
  MergedWeights merged(const MergeSettings& settings = {}) const {
    std::filesystem::remove_all(out_);
    return merge_adapter(adapter_.path(), out_, settings);
  }

  const AdapterFolder adapter_{"mixed_batch"};
  const std::filesystem::path out_ = adapter_.beside("merged");
};

TEST_F(MergedAdapter, CountsWhatRoundingTakesBack) {
  scale_adapter(1e-3);
  EXPECT_EQ(merged().unchanged, 0);
  convert_base(at::kBFloat16);
  const MergedWeights in16 = merged();
  EXPECT_GT(in16.changed, 0);
  EXPECT_GT(in16.unchanged, in16.changed / 2);
  const MergedWeights in32 = merged({.dtype = at::kFloat});
  EXPECT_EQ(in32.changed, in16.changed);
  EXPECT_EQ(in32.unchanged, 0);
}

TEST_F(MergedAdapter, IsWrittenInTheTypeThatIsAskedFor) {
  convert_base(at::kBFloat16);
  for (const auto& [dtype, name] :
       {std::pair{at::kFloat, "float32"}, std::pair{at::kHalf, "float16"}, std::pair{at::kBFloat16, "bfloat16"}}) {
    merged({.dtype = dtype});
    const io::CheckpointTensors tensors(out_);
    for (const auto& tensor : tensors.names()) EXPECT_EQ(tensors.info(tensor).dtype, dtype) << tensor;
    const auto config = io::read_json(out_ / "config.json");
    EXPECT_EQ(config.value(config.contains("torch_dtype") ? "torch_dtype" : "dtype", ""), name);
    EXPECT_NO_THROW(load_model(out_, at::kCPU, at::kFloat));
  }
}

TEST_F(MergedAdapter, ThatOverflowsIsRefusedByTensorAndValue) {
  convert_base(at::kHalf);
  scale_adapter(1e4);
  EXPECT_THAT(message_of([&] { merged(); }),
              AllOf(HasSubstr("q_proj.weight"), HasSubstr("F16"), HasSubstr("--dtype float32")));
  EXPECT_FALSE(std::filesystem::exists(out_));
  merged({.dtype = at::kFloat});
  EXPECT_NO_THROW(load_model(out_, at::kCPU, at::kFloat));
}

TEST_F(MergedAdapter, OfInfiniteValuesIsRefused) {
  auto tensors = adapter_.tensors();
  tensors.begin()->second.fill_(std::numeric_limits<float>::infinity());
  adapter_.put(tensors);
  const auto wanted = AllOf(HasSubstr(tensors.begin()->first), HasSubstr("not finite"));
  EXPECT_THAT(message_of([&] { merged(); }), wanted);
  EXPECT_THAT(message_of([&] { adapter_.load(); }), wanted);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(MergedAdapter, HasNoQuantizationConfigLeft) {
  adapter_.base_copy().edit("config.json", [](auto& content) {
    content["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  });
  merged();
  EXPECT_FALSE(io::read_json(out_ / "config.json").contains("quantization_config"));
}

TEST_F(MergedAdapter, KeepsTheBasesTemplateNextToATokenizerWithout) {
  std::filesystem::remove(adapter_.path() / "chat_template.jinja");
  adapter_.edit("tokenizer_config.json", [](auto& content) { content["note"] = 1; });
  merged();
  EXPECT_EQ(io::read_file(out_ / "chat_template.jinja"), io::read_file(adapter_.base() / "chat_template.jinja"));
}

}  // namespace
}  // namespace vlmtrain::models

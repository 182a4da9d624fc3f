#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/checkpoints/load_weights.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_contents.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST(Overflow, FirstNonFiniteValueIsNamed) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    at::Tensor values = at::zeros({3, 4}, dtype);
    EXPECT_EQ(describe_first_non_finite_value(values), "") << c10::toString(dtype);
    values[2][1] = kInfinite;
    EXPECT_EQ(describe_first_non_finite_value(values), "inf at [2, 1]") << c10::toString(dtype);
    values[1][3] = kNan;
    EXPECT_EQ(describe_first_non_finite_value(values), "nan at [1, 3]") << c10::toString(dtype);
    EXPECT_EQ(describe_first_non_finite_value(values.t()), "inf at [1, 2]") << c10::toString(dtype);
  }
  EXPECT_EQ(describe_first_non_finite_value(at::zeros({2}, at::kLong)), "");
}

TEST(Overflow, IsAFiniteValueThatBecomesInfinite) {
  at::Tensor values = at::zeros({2, 2}, at::kFloat);
  values[1][0] = 65519;  // rounds to the largest number, 65504
  EXPECT_EQ(describe_overflow("w", values, at::kHalf), "");
  values[1][0] = -65520;
  EXPECT_EQ(describe_overflow("w", values, at::kHalf), "w has -65520 at [1, 0], which is infinite in F16");
  EXPECT_EQ(describe_overflow("w", values, at::kBFloat16), "");
  EXPECT_EQ(describe_overflow("w", values.to(at::kBFloat16), at::kHalf),
            "w has -65536 at [1, 0], which is infinite in F16");
  values[1][0] = kInfinite;
  EXPECT_EQ(describe_overflow("w", values, at::kHalf), "") << "it was infinite before";
}

class CheckpointOverflow : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  void set_value(double value) const {
    io::NamedTensors tensors;
    const io::CheckpointTensors stored_tensors(copy_.path());
    for (const auto& name : stored_tensors.names()) {
      tensors.emplace_back(name, stored_tensors.tensor(name).clone());
      if (name == weight_) tensors.back().second[0][0] = value;
    }
    io::write_safetensors(copy_.path() / "model.safetensors", tensors);
  }

  const CheckpointCopy copy_{GetParam().first};
  const std::string weight_ = GetParam().second;
};

TEST_P(CheckpointOverflow, IsSavedInAWiderDtype) {
  set_value(1e5);
  const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
  load_weights(*model, copy_.path());
  const BaseWeights base(copy_.path());
  for (const bool is_language_frozen : {true, false}) {  // frozen, and trained
    freeze_parts(*model, {.language_model = is_language_frozen});
    const parity::TemporaryFolder out;
    const CapturedLog log;
    save_checkpoint(*model, {.base = &base, .dtype = at::kHalf}, out.path(), 10'000'000);
    EXPECT_THAT(log.text(), AllOf(HasSubstr(weight_ + " has 100000 at [0, 0]"), HasSubstr("saved in F32")));
    const io::CheckpointTensors saved_tensors(out.path());
    EXPECT_EQ(saved_tensors.tensor(weight_)[0][0].item<float>(), 1e5F);
    int64_t num_half = 0;
    for (const auto& name : saved_tensors.names()) num_half += saved_tensors.info(name).dtype == at::kHalf ? 1 : 0;
    EXPECT_EQ(num_half, std::ssize(saved_tensors.names()) - 1);
    const auto config = io::read_json(out.path() / "config.json");
    EXPECT_EQ(config.contains("torch_dtype") ? config["torch_dtype"] : config.at("dtype"), "float32");
  }
}

TEST_P(CheckpointOverflow, IsRefusedOnLoad) {
  set_value(1e5);
  const auto half_model = build_model(copy_.path(), at::kCPU, at::kHalf);
  EXPECT_THAT(get_error_message([&] { load_weights(*half_model, copy_.path()); }),
              AllOf(HasSubstr(copy_.path().string()), HasSubstr(weight_ + " has 100000"), HasSubstr("bf16 or fp32")));
  set_value(kNan);
  const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(get_error_message([&] { load_weights(*model, copy_.path()); }),
              HasSubstr(weight_ + " has nan at [0, 0]"));
  const CapturedLog log;
  EXPECT_NO_THROW(load_weights(*model, copy_.path(), {.allow_non_finite_values = true}));
  EXPECT_THAT(log.text(), HasSubstr(weight_ + " has nan at [0, 0]"));
}

INSTANTIATE_TEST_SUITE_P(Families, CheckpointOverflow,
                         testing::Values(std::pair{"text_only", "model.text_model.layers.0.mlp.down_proj.weight"},
                                         std::pair{"qwen2_vl_images", "model.layers.0.mlp.down_proj.weight"},
                                         std::pair{"gemma3_published",
                                                   "language_model.model.layers.0.mlp.down_proj.weight"}),
                         [](const auto& instance) { return std::string(instance.param.first); });

}  // namespace
}  // namespace vlmtrain::models

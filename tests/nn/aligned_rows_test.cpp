#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "nn/adjacent_tensors.h"
#include "parity/deviations.h"
#include "vlmtrain/nn/layers/activation.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {
namespace {

using parity::relative_difference;

// nn.custom_kernels runs these tests with VLMTRAIN_ROW_ALIGNMENT=64, so that all sizes are padded.

constexpr int64_t kMlpRows = 24;
constexpr int64_t kMlpHidden = 10;
constexpr int64_t kMlpWidth = 13;

struct MlpCase {
  std::string name;
  std::optional<LoraSettings> lora = std::nullopt;
  Quantization quantization = Quantization::kNone;
  bool has_bias = true;
};

std::vector<MlpCase> make_mlp_cases() {
  const auto with_lora = [](int64_t rank, std::vector<std::string> targets, bool use_dora = false) {
    return LoraSettings{.rank = rank, .alpha = 3, .use_dora = use_dora, .target_modules = std::move(targets)};
  };
  const std::vector<std::string> all{"all-linear"};
  return {{.name = "trained"},
          {.name = "trained_without_bias", .has_bias = false},
          {.name = "lora_rank_1", .lora = with_lora(1, all)},
          {.name = "lora_rank_3", .lora = with_lora(3, all)},
          {.name = "lora_rank_8", .lora = with_lora(8, all), .has_bias = false},
          {.name = "lora_of_up", .lora = with_lora(3, {"up_proj"})},
          {.name = "dora", .lora = with_lora(3, {"up_proj", "down_proj"}, /*use_dora=*/true)},
          {.name = "nf4", .lora = with_lora(3, all), .quantization = Quantization::kNf4},
          {.name = "int8", .lora = with_lora(3, all), .quantization = Quantization::kInt8},
          {.name = "int8_without_bias",
           .lora = with_lora(16, all),
           .quantization = Quantization::kInt8,
           .has_bias = false}};
}

/// An MLP of a width that no alignment divides.
class AlignedMlpTest : public testing::TestWithParam<MlpCase> {
 protected:
  AlignedMlpTest() {
    at::manual_seed(1);
    for (const auto& parameter : store_.all()) parameter.set_values(at::randn(parameter.sizes(), dtype()));
  }

  static at::ScalarType dtype() { return GetParam().quantization == Quantization::kNone ? at::kDouble : at::kFloat; }

  at::Tensor find_tensor(const std::string& name) const {
    for (const auto& parameter : store_.all()) {
      if (parameter.name == name) return parameter.quantized_weight ? parameter.values() : parameter.tensor;
    }
    return {};
  }

  std::vector<at::Tensor> collect_trained(const at::Tensor& x) const {
    std::vector<at::Tensor> tensors{x};
    for (const auto& parameter : store_.all()) {
      if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  /// Returns the result of one Linear in fp64.
  at::Tensor compute_linear(const std::string& path, const at::Tensor& x) const {
    const auto get = [&](const char* name) {
      const at::Tensor tensor = find_tensor(path + name);
      return tensor.defined() ? tensor.to(at::kDouble) : tensor;
    };
    at::Tensor weight = get(".weight");
    if (const at::Tensor a = get(".lora_A.weight"); a.defined()) {
      weight = weight + store_.lora()->scale() * at::mm(get(".lora_B.weight"), a);
      const at::Tensor magnitude = get(".lora_magnitude_vector");
      if (magnitude.defined()) weight = (magnitude / weight.detach().norm(2, {1})).unsqueeze(1) * weight;
    }
    return at::linear(x, weight, get(".bias"));
  }

  ParameterStore store_{ParameterSettings{at::TensorOptions(dtype()), GetParam().lora, GetParam().quantization}};
  const ParameterScope scope_{store_, Component::kLanguageModel, "mlp"};
  const MergedLinear gate_up_{scope_,
                              {"gate_proj", "up_proj"},
                              kMlpHidden,
                              {kMlpWidth, kMlpWidth},
                              GetParam().has_bias,
                              OutputColumns::kAligned};
  const Linear down_{scope_ / "down_proj", kMlpWidth, kMlpHidden, GetParam().has_bias};
};

TEST_P(AlignedMlpTest, ComputesTheSameAsWithoutPadding) {
  const at::Tensor x = at::randn({kMlpRows, kMlpHidden}, dtype()).set_requires_grad(true);
  const at::Tensor gate_up = gate_up_(x);
  const int64_t aligned_columns = align_width(kMlpWidth, x.options());
  ASSERT_EQ(gate_up.sizes(), (at::IntArrayRef{kMlpRows, 2 * aligned_columns}));
  for (const int64_t first : {int64_t{0}, aligned_columns}) {
    const at::Tensor padding = gate_up.narrow(1, first + kMlpWidth, aligned_columns - kMlpWidth);
    EXPECT_TRUE(at::equal(padding, at::zeros_like(padding)));
  }
  const at::Tensor y = down_(swiglu(gate_up));
  const at::Tensor exact_x = x.to(at::kDouble);
  const at::Tensor expected = compute_linear(
      "mlp.down_proj", at::silu(compute_linear("mlp.gate_proj", exact_x)) * compute_linear("mlp.up_proj", exact_x));
  // Dozens of products of numbers near 1 in fp32.
  const double tolerance = dtype() == at::kDouble ? 1e-13 : 1e-5;
  EXPECT_LT(relative_difference(y.to(at::kDouble), expected), tolerance);

  const at::Tensor gradient = at::randn(y.sizes(), dtype());
  const auto tensors = collect_trained(x);
  const auto actual = torch::autograd::grad({y}, tensors, {gradient});
  const auto exact = torch::autograd::grad({expected}, tensors, {gradient.to(at::kDouble)});
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_LT(relative_difference(actual[i].to(at::kDouble), exact[i].to(at::kDouble)), tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AlignedMlpTest, testing::ValuesIn(make_mlp_cases()),
                         [](const auto& test) { return test.param.name; });

TEST(AlignedRowsTest, AdjacentTensorsHaveRowsOfZerosBetweenThem) {
  const auto tensors = allocate_adjacent_tensors({3, 8, 1}, {2}, at::kFloat, /*row_alignment=*/4);
  for (const at::Tensor& tensor : tensors) tensor.fill_(1);
  const at::Tensor all = view_adjacent_tensors(tensors, 4);
  EXPECT_TRUE(at::equal(all.select(1, 0), at::tensor({1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0}, at::kFloat)));
  EXPECT_FALSE(view_adjacent_tensors(tensors).defined()) << "rows are between them";
  EXPECT_TRUE(at::equal(view_adjacent_tensors({tensors[1]}, 4), tensors[1])) << "a tensor without rows of zeros";
}

TEST(AlignedRowsTest, MovedTensorsHaveNoRowsOfZeros) {
  const at::Tensor other = at::ones({12, 2});
  EXPECT_FALSE(view_adjacent_tensors({other.narrow(0, 0, 3)}, 4).defined());
  EXPECT_FALSE(view_adjacent_tensors({other.narrow(0, 8, 3)}, 4).defined());
}

TEST(AlignedRowsTest, PaddedMatricesRecordGradients) {
  const at::Tensor matrix = at::randn({3, 5}, at::kDouble).set_requires_grad(true);
  const at::Tensor padded = pad_to_aligned_width(matrix);
  EXPECT_EQ(padded.size(1), align_width(5, matrix.options()));
  EXPECT_TRUE(at::equal(padded.narrow(1, 0, 5), matrix));
  EXPECT_EQ(padded.count_nonzero().item<int64_t>(), matrix.numel());
  EXPECT_TRUE(at::equal(torch::autograd::grad({padded.sum()}, {matrix}).front(), at::ones_like(matrix)));
}

TEST(AlignedRowsTest, WidthsAreAlignedOnCudaOnly) {
  if (std::getenv("VLMTRAIN_ROW_ALIGNMENT") != nullptr) GTEST_SKIP() << "another alignment is set";
  const auto cuda = at::TensorOptions(at::kCUDA);
  EXPECT_EQ(align_width(3420, cuda.dtype(at::kBFloat16)), 3424);
  EXPECT_EQ(align_width(3424, cuda.dtype(at::kHalf)), 3424);
  EXPECT_EQ(align_width(3421, cuda.dtype(at::kFloat)), 3424);
  EXPECT_EQ(align_width(1, cuda.dtype(at::kDouble)), 2);
  EXPECT_EQ(align_width(3421, at::TensorOptions(at::kBFloat16)), 3421);
}

}  // namespace
}  // namespace vlmtrain::nn

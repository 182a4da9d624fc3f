#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "models/network/tiny_vit.h"
#include "parity/case.h"
#include "parity/deviations.h"

namespace vlmtrain::parity {
namespace {

constexpr std::string_view kNamePrefix = "image_encoder.";

/// Case of reference/modules/tiny_vit.py, with encoders that have its weights.
class TinyVitParity : public testing::TestWithParam<std::string> {
 protected:
  /// Features, and gradients of all tensors that have one.
  using TensorMap = std::map<std::string, at::Tensor>;

  /// Returns the results of an encoder in `dtype`.
  TensorMap compute_results(at::ScalarType dtype, int64_t recomputed_blocks) const {
    nn::ParameterStore store{at::TensorOptions(dtype)};
    const models::TinyVit encoder({store, nn::Component::kMaskEncoder, "image_encoder"}, config_);
    size_t weights = 0;
    for (const std::string& name : file_.names()) weights += name.starts_with("weights.") ? 1 : 0;
    EXPECT_EQ(store.all().size(), weights);
    for (const nn::Parameter& parameter : store.all()) {
      const at::Tensor values = file_.tensor("weights." + strip_prefix(parameter));
      EXPECT_EQ(parameter.sizes(), values.sizes()) << parameter.name;
      parameter.set_values(values);
    }
    const at::Tensor pixels = file_.tensor("pixels").to(dtype).requires_grad_();
    const at::Tensor features = encoder(pixels, recomputed_blocks);
    (features * file_.tensor("direction")).sum().backward();
    TensorMap results{{"features", features.detach()}, {"gradient.pixels", pixels.grad()}};
    for (const nn::Parameter& parameter : store.all()) {
      if (parameter.tensor.grad().defined()) results["gradient." + strip_prefix(parameter)] = parameter.tensor.grad();
    }
    return results;
  }

  /// Compares `results` with the reference.
  void expect_near_reference(const TensorMap& results, double features_bound, double gradient_bound) const {
    Deviations deviations;
    size_t num_expected = 0;
    for (const std::string& name : file_.names()) {
      if (name != "features" && !name.starts_with("gradient.")) continue;
      ++num_expected;
      ASSERT_TRUE(results.contains(name)) << name;
      const at::Tensor actual = select_stored_part(name, results.at(name));
      const at::Tensor reference = file_.tensor(name);
      ASSERT_EQ(actual.sizes(), reference.sizes()) << name;
      if (name == "features") {
        deviations.expect_at_most(features_bound, relative_difference(actual, reference), "features", GetParam());
      } else {
        deviations.expect_at_most(gradient_bound, largest_difference(actual, reference), "gradient",
                                  GetParam() + ": " + name);
      }
    }
    EXPECT_EQ(results.size(), num_expected);
    deviations.report();
  }

  int64_t num_blocks() const {
    nn::ParameterStore store{at::TensorOptions(at::kFloat)};
    return models::TinyVit({store, nn::Component::kMaskEncoder, "image_encoder"}, config_).num_blocks();
  }

  /// Returns the elements stored in the file.
  at::Tensor select_stored_part(const std::string& name, const at::Tensor& tensor) const {
    if (name == "features") return tensor;
    return tensor.flatten().slice(0, 0, tensor.numel(), std::stoll(file_.metadata().at("every")));
  }

  static std::string strip_prefix(const nn::Parameter& parameter) { return parameter.name.substr(kNamePrefix.size()); }

  const io::SafetensorsFile file_{source_folder() / "tests/parity/data/tiny_vit" / (GetParam() + ".safetensors")};
  const models::TinyVitConfig config_ = models::TinyVitConfig::from_json(
      io::parse_json(file_.metadata().at("config"), file_.path().string()), file_.path().string());
};

// Rounding is the same on every processor: nn::ConvBatchNorm folds its batch norm in float32,
// element by element, and the reference is stored as float32. Gradients amplify it to 1.5e-6.
TEST_P(TinyVitParity, FeaturesAndGradientsMatchTimmInFloat64) {
  expect_near_reference(compute_results(at::kDouble, /*recomputed_blocks=*/0), /*features_bound=*/1e-6,
                        /*gradient_bound=*/5e-6);
}

// The gradient of a batch norm's weight is a sum over all positions (10,816 in block_of_5m) whose
// terms nearly cancel. The order of float32 additions differs among processors and changes it by up
// to 1.5e-5 of its largest element.
TEST_P(TinyVitParity, FeaturesAndGradientsMatchTimm) {
  expect_near_reference(compute_results(at::kFloat, /*recomputed_blocks=*/0), /*features_bound=*/1e-5,
                        /*gradient_bound=*/1e-4);
}

TEST_P(TinyVitParity, RecomputedBlocksChangeNothing) {
  const TensorMap reference = compute_results(at::kFloat, /*recomputed_blocks=*/0);
  for (const int64_t recomputed_blocks : {int64_t{1}, num_blocks() - 1, num_blocks()}) {
    const TensorMap actual = compute_results(at::kFloat, recomputed_blocks);
    ASSERT_EQ(actual.size(), reference.size());
    for (const auto& [name, tensor] : reference) {
      EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name << ", " << recomputed_blocks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TinyVitParity,
                         testing::Values("last_merging_keeps_size", "other_size", "all_mergings_halve", "block_of_5m"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity

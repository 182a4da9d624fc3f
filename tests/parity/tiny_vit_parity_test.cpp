#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "models/network/mask/tiny_vit/tiny_vit.h"
#include "parity/case.h"
#include "parity/deviations.h"

namespace vlmtrain::parity {
namespace {

constexpr std::string_view kPlace = "image_encoder.";

/// An encoder with the weights of a case (reference/make_tiny_vit_reference.py).
class TinyVitParity : public testing::TestWithParam<std::string> {
 protected:
  /// Features, and gradients of all that has one.
  using Results = std::map<std::string, at::Tensor>;

  void SetUp() override {
    size_t weights = 0;
    for (const std::string& name : file_.names()) weights += name.starts_with("weights.") ? 1 : 0;
    ASSERT_EQ(store_.all().size(), weights);
    for (const nn::Parameter& parameter : store_.all()) {
      const at::Tensor values = file_.tensor("weights." + name_of(parameter));
      ASSERT_EQ(parameter.sizes(), values.sizes()) << parameter.name;
      parameter.set_values(values);
    }
  }

  Results run(int64_t recomputed_blocks) const {
    const at::Tensor pixels = file_.tensor("pixels").to(at::kFloat).requires_grad_();
    const at::Tensor features = encoder_(pixels, recomputed_blocks);
    (features * file_.tensor("direction")).sum().backward();
    Results results{{"features", features.detach()}, {"gradient.pixels", pixels.grad()}};
    for (const nn::Parameter& parameter : store_.all()) {
      at::Tensor tensor = parameter.tensor;
      if (tensor.grad().defined()) results["gradient." + name_of(parameter)] = tensor.grad();
      tensor.mutable_grad() = at::Tensor();
    }
    return results;
  }

  /// The elements that the file has.
  at::Tensor stored_part(const std::string& name, const at::Tensor& tensor) const {
    if (name == "features") return tensor;
    return tensor.flatten().slice(0, 0, tensor.numel(), std::stoll(file_.metadata().at("every")));
  }

  static std::string name_of(const nn::Parameter& parameter) { return parameter.name.substr(kPlace.size()); }

  const io::SafetensorsFile file_{source_folder() / "tests/parity/data/tiny_vit" / (GetParam() + ".safetensors")};
  const models::TinyVitConfig config_ = models::TinyVitConfig::from_json(
      io::parse_json(file_.metadata().at("config"), file_.path().string()), file_.path().string());
  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  const models::TinyVit encoder_{{store_, nn::Component::kMaskEncoder, "image_encoder"}, config_};
};

TEST_P(TinyVitParity, FeaturesAndGradientsAreTimms) {
  Deviations deviations;
  const Results results = run(/*recomputed_blocks=*/0);
  size_t expected = 0;
  for (const std::string& name : file_.names()) {
    if (name != "features" && !name.starts_with("gradient.")) continue;
    ++expected;
    ASSERT_TRUE(results.contains(name)) << name;
    const at::Tensor found = stored_part(name, results.at(name));
    const at::Tensor wanted = file_.tensor(name);
    ASSERT_EQ(found.sizes(), wanted.sizes()) << name;
    const bool is_gradient = name != "features";
    const double difference = is_gradient ? largest_difference(found, wanted) : relative_difference(found, wanted);
    deviations.expect_at_most(1e-5, difference, is_gradient ? "gradient" : "features", GetParam() + ": " + name);
  }
  EXPECT_EQ(results.size(), expected);
  deviations.report();
}

TEST_P(TinyVitParity, RecomputedBlocksChangeNothing) {
  const Results wanted = run(/*recomputed_blocks=*/0);
  for (const int64_t recomputed_blocks : {int64_t{1}, encoder_.blocks() - 1, encoder_.blocks()}) {
    const Results found = run(recomputed_blocks);
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      EXPECT_TRUE(at::equal(found.at(name), tensor)) << name << ", " << recomputed_blocks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TinyVitParity,
                         testing::Values("last_merging_keeps_size", "other_size", "all_mergings_halve", "block_of_5m"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity

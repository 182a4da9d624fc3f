#include "parity/stored_tensor.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/exact_values.h"

namespace vlmtrain::parity {
namespace {

constexpr const char* kName = "model.text_model.layers.1.mlp.down_proj.weight";
constexpr int64_t kNotStored = kStride * 20 + 5;  ///< index of an element that no file stores

class StoredTensorTest : public testing::Test {
 protected:
  static at::Tensor add_difference(const at::Tensor& tensor, int64_t index, double difference) {
    at::Tensor edited = tensor.clone();
    edited.view(-1)[index] += difference;
    return edited;
  }

  /// Returns the number of failed checks for `actual` in float32 and `exact` in float64.
  int count_failures(const at::Tensor& actual, const at::Tensor& exact) const {
    testing::TestPartResultArray results;
    {
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      Deviations deviations;
      expect_close_to_exact(deviations, actual, reference_, exact, "gradient", kName);
    }
    return results.size();
  }

  const Case case_{"text_only"};
  const StoredTensor reference_ = case_.expected().stored(std::string("gradient.") + kName);
  const at::Tensor exact_ = ExactValues(*case_.load_model(at::kDouble), case_.samples()).gradient(kName);
  const double norm_ = exact_.norm().item<double>();
};

TEST_F(StoredTensorTest, EditedElementIsNotStored) {
  ASSERT_LT(reference_.values().numel(), exact_.numel());
  const at::Tensor edited = add_difference(exact_, kNotStored, norm_);
  EXPECT_EQ(largest_difference(reference_.select_stored(edited), reference_.select_stored(exact_)), 0);
}

TEST_F(StoredTensorTest, NothingFailsWithoutADifference) {
  EXPECT_EQ(count_failures(exact_.to(at::kFloat), exact_), 0);
}

TEST_F(StoredTensorTest, DifferenceInAnUnstoredElementFails) {
  // A difference from the reference in both precisions, 3e-5 of the norm.
  const at::Tensor edited = add_difference(exact_, kNotStored, 3e-5 * norm_);
  EXPECT_EQ(count_failures(edited.to(at::kFloat), edited), 1);
  // A difference in float32 only.
  EXPECT_EQ(count_failures(edited.to(at::kFloat), exact_), 2);
}

TEST_F(StoredTensorTest, DifferenceNormIsEstimated) {
  EXPECT_NEAR(reference_.estimate_difference_norm(add_difference(exact_, kNotStored, norm_)), norm_, 1e-5 * norm_);
  for (int64_t scale = 1; scale <= 4; ++scale) {
    const at::Tensor perturbed = exact_ + exact_.roll(17 * scale) * 0.1;
    const double estimate = reference_.estimate_difference_norm(perturbed) / (0.1 * norm_);
    EXPECT_GT(estimate, 0.4) << scale;
    EXPECT_LT(estimate, 1.8) << scale;
  }
}

TEST_F(StoredTensorTest, TensorOfAnotherSizeIsRefused) {
  EXPECT_THROW(reference_.select_stored(exact_.narrow(0, 0, 8)), std::runtime_error);
}

TEST_F(StoredTensorTest, SampledTensorIsNotReadAsFullTensor) {
  EXPECT_THROW(case_.expected().tensor(std::string("gradient.") + kName), std::logic_error);
}

}  // namespace
}  // namespace vlmtrain::parity

#include "parity/stored_tensor.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/exact_values.h"

namespace vlmtrain::parity {
namespace {

constexpr const char* kName = "model.text_model.layers.1.mlp.down_proj.weight";
constexpr int64_t kNotStored = kEvery * 20 + 5;  ///< index of an element that no file has

class StoredTensorTest : public testing::Test {
 protected:
  static at::Tensor with_difference(const at::Tensor& tensor, int64_t index, double difference) {
    at::Tensor changed = tensor.clone();
    changed.view(-1)[index] += difference;
    return changed;
  }

  /// Returns how many checks fail if `found` and `exact` are what this program computes in float32 and in float64.
  int failures(const at::Tensor& found, const at::Tensor& exact) const {
    testing::TestPartResultArray results;
    {
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      Deviations deviations;
      expect_as_exact(deviations, found, reference_, exact, "gradient", kName);
    }
    return results.size();
  }

  const Case case_{"text_only"};
  const StoredTensor reference_ = case_.expected().stored(std::string("gradient.") + kName);
  const at::Tensor exact_ = ExactValues(*case_.load_model(at::kDouble), case_.samples()).gradient(kName);
  const double norm_ = exact_.norm().item<double>();
};

TEST_F(StoredTensorTest, ThePlantedElementIsNotStored) {
  ASSERT_LT(reference_.values().numel(), exact_.numel());
  const at::Tensor changed = with_difference(exact_, kNotStored, norm_);
  EXPECT_EQ(largest_difference(reference_.part_of(changed), reference_.part_of(exact_)), 0);
}

TEST_F(StoredTensorTest, NothingFailsWithoutADifference) {
  EXPECT_EQ(failures(exact_.to(at::kFloat), exact_), 0);
}

TEST_F(StoredTensorTest, ADifferenceInAnElementThatIsNotStoredFails) {
  // What this program computes differs from what the reference computed, in both precisions alike: by 3e-5 of the norm.
  const at::Tensor changed = with_difference(exact_, kNotStored, 3e-5 * norm_);
  EXPECT_EQ(failures(changed.to(at::kFloat), changed), 1);
  // It differs in float32 alone.
  EXPECT_EQ(failures(changed.to(at::kFloat), exact_), 2);
}

TEST_F(StoredTensorTest, TheNormOfADifferenceIsExactForOneElementAndNearForMany) {
  EXPECT_NEAR(reference_.norm_of_difference(with_difference(exact_, kNotStored, norm_)), norm_, 1e-5 * norm_);
  for (int64_t scale = 1; scale <= 4; ++scale) {
    const at::Tensor many = exact_ + exact_.roll(17 * scale) * 0.1;
    const double estimate = reference_.norm_of_difference(many) / (0.1 * norm_);
    EXPECT_GT(estimate, 0.4) << scale;
    EXPECT_LT(estimate, 1.8) << scale;
  }
}

TEST_F(StoredTensorTest, ATensorOfAnotherSizeIsRefused) {
  EXPECT_THROW(reference_.part_of(exact_.narrow(0, 0, 8)), std::runtime_error);
}

TEST_F(StoredTensorTest, WhatMayBeStoredInPartIsNotReadAsAWhole) {
  EXPECT_THROW(case_.expected().tensor(std::string("gradient.") + kName), std::logic_error);
}

}  // namespace
}  // namespace vlmtrain::parity

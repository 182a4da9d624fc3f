#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "engine/batch_of_eight.h"
#include "engine/gradients/vector_parameters.h"
#include "engine/small_parameters.h"
#include "engine/small_step.h"
#include "vlmtrain/engine/gradients/rank_sync.h"

namespace vlmtrain::engine {
namespace {

using testing::ElementsAre;

/// A hook that records the buckets in order.
struct RecordedBuckets {
  std::vector<const void*> addresses{};
  std::vector<int64_t> elements{};
  std::vector<at::Tensor> values{};
};

void record_buckets(GradientReducer& reducer, RecordedBuckets& records) {
  reducer.register_comm_hook([&records](const at::Tensor& bucket) {
    records.addresses.push_back(bucket.const_data_ptr());
    records.elements.push_back(bucket.numel());
    records.values.push_back(bucket.clone());
  });
}

/// 25 MiB are 6.5 million elements. Last parameters come first; p1 with seven million has its own
/// bucket.
TEST(GradientReducerTest, AreInBackwardOrder) {
  Vectors vectors({3, 7 * kMillion, 129, 4 * kMillion, 2 * kMillion});
  GradientBuckets buckets(vectors.store());
  GradientReducer reducer(buckets);
  RecordedBuckets records;
  record_buckets(reducer, records);
  vectors.backward();
  reducer.flush();
  EXPECT_THAT(records.elements, ElementsAre(6 * kMillion + 256, 7'000'064, 128));
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto address = reinterpret_cast<uintptr_t>(buckets.sum(i).const_data_ptr());
    EXPECT_EQ((address - reinterpret_cast<uintptr_t>(records.addresses[0])) % 512, 0U) << i;
    EXPECT_TRUE(buckets.sum(i).is_contiguous());
  }
  EXPECT_EQ(buckets.sum(4).const_data_ptr(), records.addresses[0]);
  EXPECT_EQ(buckets.sum(1).const_data_ptr(), records.addresses[1]);
  EXPECT_EQ(buckets.sum(0).const_data_ptr(), records.addresses[2]);
}

/// Three parameters with one bucket each.
class ReducedBuckets : public testing::Test {
 protected:
  ReducedBuckets() { record_buckets(reducer_, records_); }

  /// Returns the value of each bucket so far.
  std::vector<float> get_reduced_values() const {
    std::vector<float> values;
    for (const auto& bucket : records_.values) {
      values.push_back(bucket[0].item<float>());
      EXPECT_EQ(bucket.min().item<float>(), values.back());
      EXPECT_EQ(bucket.max().item<float>(), values.back());
    }
    return values;
  }

  static constexpr int64_t kLarge = int64_t{7} << 20;
  Vectors vectors_{{kLarge, kLarge, kLarge}};
  GradientBuckets buckets_{vectors_.store()};
  GradientReducer reducer_{buckets_};
  RecordedBuckets records_;
};

TEST_F(ReducedBuckets, AreReducedDuringTheLastBackwardPass) {
  std::vector<bool> first_had_gradient;
  reducer_.register_comm_hook([&](const at::Tensor& bucket) {
    records_.values.push_back(bucket.clone());
    first_had_gradient.push_back(buckets_.has_gradient(0));
    bucket.mul_(10);  // like a sum over ranks
  });
  for (int step = 0; step < 2; ++step) {
    reducer_.begin_last_micro_batch();
    vectors_.backward();
    EXPECT_THAT(first_had_gradient, ElementsAre(false, false, true));
    reducer_.flush();
    EXPECT_EQ(records_.values.size(), 3U);
    EXPECT_EQ(buckets_.sum(1)[5].item<float>(), records_.values[1][5].item<float>() * 10);
    buckets_.reset();
    records_ = {};
    first_had_gradient.clear();
  }
}

TEST_F(ReducedBuckets, OfSeveralMicroBatchesAreReducedOnce) {
  const auto gradient = [this](size_t i, double value) { add_gradient(vectors_[i], at::full({kLarge}, value)); };
  for (const size_t i : {2U, 1U, 0U}) gradient(i, 1);
  for (const size_t i : {2U, 1U}) gradient(i, 2);
  EXPECT_THAT(get_reduced_values(), ElementsAre());
  reducer_.begin_last_micro_batch();
  gradient(2, 4);
  EXPECT_THAT(get_reduced_values(), ElementsAre(7));
  gradient(1, 8);
  gradient(0, 16);
  reducer_.flush();
  EXPECT_THAT(get_reduced_values(), ElementsAre(7, 11, 17));
}

/// Another rank may have gradients that this one lacks, and must see the same order of buckets.
TEST_F(ReducedBuckets, OfParametersWithoutGradientAreZeroAndInTheirOrder) {
  const auto gradient = [this](size_t i, double value) { add_gradient(vectors_[i], at::full({kLarge}, value)); };
  for (const size_t i : {2U, 1U, 0U}) gradient(i, 5);  // of an earlier step
  reducer_.flush();
  buckets_.reset();
  records_ = {};
  gradient(2, 3);
  reducer_.begin_last_micro_batch();
  gradient(0, 1);
  EXPECT_THAT(get_reduced_values(), ElementsAre()) << "those before it may not be complete";
  reducer_.flush();
  EXPECT_THAT(get_reduced_values(), ElementsAre(3, 0, 1));
  EXPECT_FALSE(buckets_.has_gradient(1));
}

TEST_F(ReducedBuckets, LateGradientIsAnError) {
  const auto ones = at::ones({kLarge});
  reducer_.begin_last_micro_batch();
  add_gradient(vectors_[2], ones);
  EXPECT_THROW(add_gradient(vectors_[2], ones), InternalError);
  buckets_.reset();
  add_gradient(vectors_[2], ones);
  reducer_.flush();
  EXPECT_THROW(add_gradient(vectors_[1], ones), InternalError);
  buckets_.reset();
  records_ = {};
  add_gradient(vectors_[1], ones);
  reducer_.flush();
  EXPECT_THAT(get_reduced_values(), ElementsAre(0, 1, 0)) << "a skipped step leaves nothing";
}

TEST(GradientReducerTest, OfAllGroupsAreReducedAtTheEnd) {
  Vectors vectors({100, 100});
  GradientBuckets buckets(vectors.store(), 2);
  GradientReducer reducer(buckets);
  RecordedBuckets records;
  record_buckets(reducer, records);
  buckets.set_gradient_group(1);
  reducer.begin_last_micro_batch();
  vectors.backward();
  EXPECT_TRUE(records.values.empty());
  reducer.flush();
  ASSERT_THAT(records.elements, ElementsAre(256, 256));
  EXPECT_EQ(records.values[0].abs().max().item<float>(), 0);
  EXPECT_GT(records.values[1].abs().max().item<float>(), 0);
}

/// With recomputed blocks and one tile per vision pass, a parameter still gets one gradient per
/// backward pass.
TEST(GradientReducerTest, OfAModelsStepAreReducedOnce) {
  constexpr LearningRates kRates{1e-3, 1e-3, 1e-3};
  for (const int64_t micro_batch_size : {1, 3, 8}) {
    const auto step = [&](RecordedBuckets* records) {
      const auto model = parity::Case("mixed_batch").load_model();
      model->set_recompute_block_counts({model->num_vision_blocks(), model->num_language_blocks()});
      model->set_vision_tiles_per_pass(1);
      TrainingState training(*model, {});
      if (records != nullptr) record_buckets(training.gradient_reducer, *records);
      const auto result =
          run_optimizer_step(training, batch_of_eight(), kRates, {.micro_batch_size = micro_batch_size});
      return result.grad_norm.item<float>();
    };
    RecordedBuckets records;
    EXPECT_EQ(step(&records), step(nullptr));
    ASSERT_EQ(records.values.size(), 1U) << "the model is smaller than a bucket";
    EXPECT_NEAR(records.values[0].norm().item<float>() / step(nullptr), 1, 1e-5);
  }
}

/// Adds the indices of another rank.
class UnionConsensus : public Consensus {
 public:
  explicit UnionConsensus(std::vector<int64_t> other_indices) : other_indices_(std::move(other_indices)) {}

  std::vector<int64_t> union_over_ranks(std::vector<int64_t> value) const override {
    std::set<int64_t> all(value.begin(), value.end());
    all.insert(other_indices_.begin(), other_indices_.end());
    return {all.begin(), all.end()};
  }

 private:
  std::vector<int64_t> other_indices_;
};

TEST(GradientReducerTest, GradientsOfOtherRanksAreMarked) {
  Vectors vectors({3, 4});
  GradientBuckets buckets(vectors.store(), 2);
  GradientReducer reducer(buckets);
  RecordedBuckets records;
  record_buckets(reducer, records);
  buckets.set_gradient_group(1);
  add_gradient(vectors[0], at::full({3}, 2.0));
  reducer.flush();
  reducer.mark_gradients_of_all_ranks(UnionConsensus({1, 2}));  // (group 0, p1) and (group 1, p0)
  EXPECT_FALSE(buckets.has_gradient(0, 0));
  EXPECT_TRUE(buckets.has_gradient(1, 0));
  EXPECT_TRUE(buckets.has_gradient(0, 1));
  EXPECT_FALSE(buckets.has_gradient(1, 1));
  EXPECT_EQ(buckets.sum(1, 0).abs().max().item<float>(), 0);
  EXPECT_EQ(buckets.sum(0, 1).min().item<float>(), 2);
}

/// The bucket of the small vectors remains open until the end of the backward pass. It must not
/// delay the undivided one.
TEST(GradientReducerTest, BucketsAreReducedInOrderOfCompletion) {
  Vectors vectors({100, 7 * kMillion, 100, 7 * kMillion, 100});
  const auto is_large = [](const nn::Parameter& parameter) { return parameter.tensor.numel() > kMillion; };
  GradientBuckets buckets(vectors.store(), 1, {.rank = 0, .count = 2}, is_large);
  GradientReducer reducer(buckets);
  std::vector<bool> first_had_gradient;
  reducer.register_comm_hook([&](const at::Tensor&) { first_had_gradient.push_back(buckets.has_gradient(0)); });
  reducer.begin_last_micro_batch();
  vectors.backward();
  EXPECT_THAT(first_had_gradient, ElementsAre(false, true));
}

}  // namespace
}  // namespace vlmtrain::engine

#include "vlmtrain/engine/gradients/gradient_buckets.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "engine/batch_of_eight.h"
#include "engine/small_parameters.h"
#include "engine/small_step.h"

namespace vlmtrain::engine {
namespace {

using testing::ElementsAre;

constexpr int64_t kMillion = 1'000'000;

/// A store of vectors p0, p1, … of these sizes, all ones.
class Vectors {
 public:
  explicit Vectors(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat)
      : store_(at::TensorOptions(dtype)) {
    const nn::ParameterScope scope(store_, nn::Component::kLanguageModel, "model");
    for (const int64_t size : sizes) {
      const auto name = fmt::format("p{}", store_.all().size());
      scope.add_parameter(name, {size}, nn::InitialValues::zeros()).detach().fill_(1);
    }
  }

  const nn::ParameterStore& store() const { return store_; }
  const at::Tensor& operator[](size_t i) const { return store_.all().at(i).tensor; }

  /// Runs a backward pass, layer by layer.
  void backward() const {
    at::Tensor layer = at::ones({});
    for (const auto& parameter : store_.all()) layer = layer * parameter.tensor.mean();
    layer.backward();
  }

 private:
  nn::ParameterStore store_;
};

/// A hook that records the buckets in order.
struct RecordedBuckets {
  std::vector<const void*> addresses{};
  std::vector<int64_t> elements{};
  std::vector<at::Tensor> values{};
};

void record_buckets(GradientBuckets& buckets, RecordedBuckets& records) {
  buckets.register_comm_hook([&records](const at::Tensor& bucket) {
    records.addresses.push_back(bucket.const_data_ptr());
    records.elements.push_back(bucket.numel());
    records.values.push_back(bucket.clone());
  });
}

TEST(GradientBuckets, FirstGradientIsCopiedAndOthersAreAdded) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Parameters parameters(dtype);
    GradientBuckets buckets(parameters.store());
    for (int step = 0; step < 2; ++step) {
      for (const double factor : {256.0, 1.0, 1.0}) {
        add_gradient(parameters.tensor("vision.vector"), at::ones({7}) * factor);
        EXPECT_FALSE(parameters.tensor("vision.vector").grad().defined());
      }
      EXPECT_TRUE(at::equal(buckets.sum("vision.vector"), at::ones({7}) * 258)) << "in 16 bits it were 256";
      EXPECT_FALSE(buckets.sum("vision.matrix").defined());
      // Gradients of one step must not appear in the next.
      buckets.sum("vision.vector").fill_(std::numeric_limits<double>::quiet_NaN());
      buckets.reset();
      EXPECT_FALSE(buckets.sum("vision.vector").defined());
    }
  }
}

TEST(GradientBuckets, MissingGradientCannotBeRead) {
  Vectors vectors({3, 4});
  GradientBuckets buckets(vectors.store());
  EXPECT_EQ(buckets.compute_local_norm().item<double>(), 0);
  add_gradient(vectors[1], at::full({4}, 2.0));
  EXPECT_FALSE(buckets.has_gradient(0));
  EXPECT_THROW(buckets.sum(0), InternalError);
  EXPECT_THROW(buckets.sum("model.p2"), InternalError);
  EXPECT_EQ(buckets.compute_local_norm().item<double>(), 4);
  EXPECT_THROW(GradientBuckets(vectors.store()), InternalError) << "two for the same gradients";
}

TEST(GradientBuckets, NormIsOfReceivedGradients) {
  Parameters parameters(at::kFloat, /*large=*/true);
  GradientBuckets buckets(parameters.store());
  auto gradients = random_gradients(parameters, 3, 1.0);
  gradients.erase("projector.large");
  add_gradients(parameters, gradients);
  std::vector<at::Tensor> received_gradients;
  for (const auto& parameter : parameters.store().all()) {
    if (gradients.contains(parameter.name)) received_gradients.push_back(gradients.at(parameter.name));
  }
  double squares = 0;
  for (const auto& gradient : received_gradients) squares += gradient.to(at::kDouble).square().sum().item<double>();
  EXPECT_EQ(buckets.compute_local_norm().item<float>(), static_cast<float>(std::sqrt(squares)));
}

/// ATen's norm of 12 million elements is 5e-4 too small, and differs with the number of threads.
TEST(GradientBuckets, NormOfLargeTensorsIsExactOnAnyNumberOfThreads) {
  Vectors vectors({12 * kMillion, 70'001});
  GradientBuckets buckets(vectors.store());
  for (size_t i = 0; i < 2; ++i) {
    add_gradient(vectors[i], at::linspace(-1e-3, 2e-3, vectors[i].numel(), at::kFloat));
  }
  double squares = 0;
  for (size_t i = 0; i < 2; ++i) squares += buckets.sum(i).to(at::kDouble).square().sum().item<double>();
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    EXPECT_EQ(buckets.compute_local_norm().item<float>(), static_cast<float>(std::sqrt(squares))) << count;
  }
  at::set_num_threads(threads);
}

TEST(GradientBuckets, NormIsNotFiniteForNonFiniteGradients) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Vectors vectors({100});
    GradientBuckets buckets(vectors.store());
    at::Tensor gradient = at::ones({100});
    gradient[77] = value;
    add_gradient(vectors[0], gradient);
    EXPECT_FALSE(std::isfinite(buckets.compute_local_norm().item<double>()));
  }
}

TEST(GradientBuckets, GroupsAreSeparate) {
  Vectors vectors({3, 200});
  GradientBuckets buckets(vectors.store(), 3);
  for (int step = 0; step < 2; ++step) {
    for (const int64_t group : {2, 0, 2}) {
      buckets.set_gradient_group(group);
      add_gradient(vectors[1], at::full({200}, 1.0 + static_cast<double>(group)));
    }
    buckets.set_gradient_group(2);
    add_gradient(vectors[0], at::ones({3}));
    EXPECT_TRUE(at::equal(buckets.sum(1, 0), at::ones({200})));
    EXPECT_FALSE(buckets.has_gradient(1, 1));
    EXPECT_TRUE(at::equal(buckets.sum(1, 2), at::full({200}, 6.0)));
    EXPECT_FALSE(buckets.has_gradient(0));
    buckets.combine_gradient_groups(at::full({3}, 2.0));
    EXPECT_TRUE(at::equal(buckets.sum(0), at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(buckets.sum(1), at::full({200}, 14.0)));
    for (const int64_t group : {0, 2}) {
      for (const size_t i : {0U, 1U}) buckets.sum(i, group).fill_(std::numeric_limits<double>::quiet_NaN());
    }
    buckets.reset();
  }
  EXPECT_THROW(buckets.set_gradient_group(3), InternalError);
}

/// 25 MiB are 6.5 million elements. Last parameters come first; p1 with seven million has its own
/// bucket.
TEST(GradientBuckets, AreInBackwardOrder) {
  Vectors vectors({3, 7 * kMillion, 129, 4 * kMillion, 2 * kMillion});
  GradientBuckets buckets(vectors.store());
  RecordedBuckets records;
  record_buckets(buckets, records);
  vectors.backward();
  buckets.flush();
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
  ReducedBuckets() { record_buckets(buckets_, records_); }

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
  RecordedBuckets records_;
};

TEST_F(ReducedBuckets, AreReducedDuringTheLastBackwardPass) {
  std::vector<bool> first_had_gradient;
  buckets_.register_comm_hook([&](const at::Tensor& bucket) {
    records_.values.push_back(bucket.clone());
    first_had_gradient.push_back(buckets_.has_gradient(0));
    bucket.mul_(10);  // like a sum over ranks
  });
  for (int step = 0; step < 2; ++step) {
    buckets_.begin_last_micro_batch();
    vectors_.backward();
    EXPECT_THAT(first_had_gradient, ElementsAre(false, false, true));
    buckets_.flush();
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
  buckets_.begin_last_micro_batch();
  gradient(2, 4);
  EXPECT_THAT(get_reduced_values(), ElementsAre(7));
  gradient(1, 8);
  gradient(0, 16);
  buckets_.flush();
  EXPECT_THAT(get_reduced_values(), ElementsAre(7, 11, 17));
}

/// Another rank may have gradients that this one lacks, and must see the same order of buckets.
TEST_F(ReducedBuckets, OfParametersWithoutGradientAreZeroAndInTheirOrder) {
  const auto gradient = [this](size_t i, double value) { add_gradient(vectors_[i], at::full({kLarge}, value)); };
  for (const size_t i : {2U, 1U, 0U}) gradient(i, 5);  // of an earlier step
  buckets_.flush();
  buckets_.reset();
  records_ = {};
  gradient(2, 3);
  buckets_.begin_last_micro_batch();
  gradient(0, 1);
  EXPECT_THAT(get_reduced_values(), ElementsAre()) << "those before it may not be complete";
  buckets_.flush();
  EXPECT_THAT(get_reduced_values(), ElementsAre(3, 0, 1));
  EXPECT_FALSE(buckets_.has_gradient(1));
}

TEST_F(ReducedBuckets, LateGradientIsAnError) {
  const auto ones = at::ones({kLarge});
  buckets_.begin_last_micro_batch();
  add_gradient(vectors_[2], ones);
  EXPECT_THROW(add_gradient(vectors_[2], ones), InternalError);
  buckets_.reset();
  add_gradient(vectors_[2], ones);
  buckets_.flush();
  EXPECT_THROW(add_gradient(vectors_[1], ones), InternalError);
  buckets_.reset();
  records_ = {};
  add_gradient(vectors_[1], ones);
  buckets_.flush();
  EXPECT_THAT(get_reduced_values(), ElementsAre(0, 1, 0)) << "a skipped step leaves nothing";
}

TEST(GradientBuckets, OfAllGroupsAreReducedAtTheEnd) {
  Vectors vectors({100, 100});
  GradientBuckets buckets(vectors.store(), 2);
  RecordedBuckets records;
  record_buckets(buckets, records);
  buckets.set_gradient_group(1);
  buckets.begin_last_micro_batch();
  vectors.backward();
  EXPECT_TRUE(records.values.empty());
  buckets.flush();
  ASSERT_THAT(records.elements, ElementsAre(256, 256));
  EXPECT_EQ(records.values[0].abs().max().item<float>(), 0);
  EXPECT_GT(records.values[1].abs().max().item<float>(), 0);
}

/// With recomputed blocks and one tile per vision pass, a parameter still gets one gradient per
/// backward pass.
TEST(GradientBuckets, OfAModelsStepAreReducedOnce) {
  constexpr LearningRates kRates{1e-3, 1e-3, 1e-3};
  for (const int64_t micro_batch_size : {1, 3, 8}) {
    const auto step = [&](RecordedBuckets* records) {
      const auto model = parity::Case("mixed_batch").load_model();
      model->set_recompute_block_counts({model->num_vision_blocks(), model->num_language_blocks()});
      model->set_vision_tiles_per_pass(1);
      TrainingState training(*model, {});
      if (records != nullptr) record_buckets(training.gradient_buckets, *records);
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

}  // namespace
}  // namespace vlmtrain::engine

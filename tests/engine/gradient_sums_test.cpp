#include "vlmtrain/engine/gradient_sums.h"

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

/// Vectors p0, p1, … of these sizes, all of ones.
class Vectors {
 public:
  explicit Vectors(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat)
      : store_(at::TensorOptions(dtype)) {
    const nn::ParameterScope scope(store_, nn::Component::kLanguageModel, "model");
    for (const int64_t size : sizes) {
      const auto name = fmt::format("p{}", store_.all().size());
      scope.parameter(name, {size}, nn::InitialValues::zeros()).detach().fill_(1);
    }
  }

  const nn::ParameterStore& store() const { return store_; }
  const at::Tensor& operator[](size_t i) const { return store_.all().at(i).tensor; }

  /// A backward pass over one layer after another.
  void backward() const {
    at::Tensor layer = at::ones({});
    for (const auto& parameter : store_.all()) layer = layer * parameter.tensor.mean();
    layer.backward();
  }

 private:
  nn::ParameterStore store_;
};

/// What a hook was given, in order.
struct Recorded {
  std::vector<const void*> places{};
  std::vector<int64_t> elements{};
  std::vector<at::Tensor> values{};
};

void record(GradientSums& sums, Recorded& recorded) {
  sums.reduce_with([&recorded](const at::Tensor& bucket) {
    recorded.places.push_back(bucket.const_data_ptr());
    recorded.elements.push_back(bucket.numel());
    recorded.values.push_back(bucket.clone());
  });
}

TEST(GradientSums, FirstIsCopiedAndOthersAreAdded) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Parameters parameters(dtype);
    GradientSums sums(parameters.store());
    for (int step = 0; step < 2; ++step) {
      for (const double factor : {256.0, 1.0, 1.0}) {
        add_gradient(parameters.tensor("vision.vector"), at::ones({7}) * factor);
        EXPECT_FALSE(parameters.tensor("vision.vector").grad().defined());
      }
      EXPECT_TRUE(at::equal(sums.sum("vision.vector"), at::ones({7}) * 258)) << "in 16 bits it were 256";
      EXPECT_FALSE(sums.sum("vision.matrix").defined());
      // Whatever is left of a step must not be seen in the next one.
      sums.sum("vision.vector").fill_(std::numeric_limits<double>::quiet_NaN());
      sums.drop();
      EXPECT_FALSE(sums.sum("vision.vector").defined());
    }
  }
}

TEST(GradientSums, WhatIsNotThereCannotBeRead) {
  Vectors vectors({3, 4});
  GradientSums sums(vectors.store());
  EXPECT_EQ(sums.norm().item<double>(), 0);
  add_gradient(vectors[1], at::full({4}, 2.0));
  EXPECT_FALSE(sums.received(0));
  EXPECT_THROW(sums.sum(0), InternalError);
  EXPECT_THROW(sums.sum("model.p2"), InternalError);
  EXPECT_EQ(sums.norm().item<double>(), 4);
  EXPECT_THROW(GradientSums(vectors.store()), InternalError) << "two for the same gradients";
}

TEST(GradientSums, NormIsThatOfWhatWasReceived) {
  Parameters parameters(at::kFloat, /*large=*/true);
  GradientSums sums(parameters.store());
  auto gradients = random_gradients(parameters, 3, 1.0);
  gradients.erase("projector.large");
  add_gradients(parameters, gradients);
  std::vector<at::Tensor> received;
  for (const auto& parameter : parameters.store().all()) {
    if (gradients.contains(parameter.name)) received.push_back(gradients.at(parameter.name));
  }
  double squares = 0;
  for (const auto& gradient : received) squares += gradient.to(at::kDouble).square().sum().item<double>();
  EXPECT_EQ(sums.norm().item<float>(), static_cast<float>(std::sqrt(squares)));
}

/// ATen's norm of 12 million elements is 5e-4 less, and another one on several threads.
TEST(GradientSums, NormOfLargeTensorsIsExactOnAnyNumberOfThreads) {
  Vectors vectors({12 * kMillion, 70'001});
  GradientSums sums(vectors.store());
  for (size_t i = 0; i < 2; ++i) {
    add_gradient(vectors[i], at::linspace(-1e-3, 2e-3, vectors[i].numel(), at::kFloat));
  }
  double squares = 0;
  for (size_t i = 0; i < 2; ++i) squares += sums.sum(i).to(at::kDouble).square().sum().item<double>();
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    EXPECT_EQ(sums.norm().item<float>(), static_cast<float>(std::sqrt(squares))) << count;
  }
  at::set_num_threads(threads);
}

TEST(GradientSums, NormSeesWhatIsNotFinite) {
  for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Vectors vectors({100});
    GradientSums sums(vectors.store());
    at::Tensor gradient = at::ones({100});
    gradient[77] = wrong;
    add_gradient(vectors[0], gradient);
    EXPECT_FALSE(std::isfinite(sums.norm().item<double>()));
  }
}

TEST(GradientSums, GroupsAreApart) {
  Vectors vectors({3, 200});
  GradientSums sums(vectors.store(), 3);
  for (int step = 0; step < 2; ++step) {
    for (const int64_t group : {2, 0, 2}) {
      sums.receive_for(group);
      add_gradient(vectors[1], at::full({200}, 1.0 + static_cast<double>(group)));
    }
    sums.receive_for(2);
    add_gradient(vectors[0], at::ones({3}));
    EXPECT_TRUE(at::equal(sums.sum(1, 0), at::ones({200})));
    EXPECT_FALSE(sums.received(1, 1));
    EXPECT_TRUE(at::equal(sums.sum(1, 2), at::full({200}, 6.0)));
    EXPECT_FALSE(sums.received(0));
    sums.combine(at::full({3}, 2.0));
    EXPECT_TRUE(at::equal(sums.sum(0), at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(sums.sum(1), at::full({200}, 14.0)));
    for (const int64_t group : {0, 2}) {
      for (const size_t i : {0U, 1U}) sums.sum(i, group).fill_(std::numeric_limits<double>::quiet_NaN());
    }
    sums.drop();
  }
  EXPECT_THROW(sums.receive_for(3), InternalError);
}

/// 25 MiB are 6.5 million elements. The last parameters come first; the seven million of p1 are alone.
TEST(GradientSums, LieInBucketsInTheOrderOfTheBackwardPass) {
  Vectors vectors({3, 7 * kMillion, 129, 4 * kMillion, 2 * kMillion});
  GradientSums sums(vectors.store());
  Recorded recorded;
  record(sums, recorded);
  vectors.backward();
  sums.finish();
  EXPECT_THAT(recorded.elements, ElementsAre(6 * kMillion + 256, 7'000'064, 128));
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto place = reinterpret_cast<uintptr_t>(sums.sum(i).const_data_ptr());
    EXPECT_EQ((place - reinterpret_cast<uintptr_t>(recorded.places[0])) % 512, 0U) << i;
    EXPECT_TRUE(sums.sum(i).is_contiguous());
  }
  EXPECT_EQ(sums.sum(4).const_data_ptr(), recorded.places[0]);
  EXPECT_EQ(sums.sum(1).const_data_ptr(), recorded.places[1]);
  EXPECT_EQ(sums.sum(0).const_data_ptr(), recorded.places[2]);
}

/// Three parameters with a bucket each.
class ReducedSums : public testing::Test {
 protected:
  ReducedSums() { record(sums_, recorded_); }

  /// The values of the buckets so far, of which each has one.
  std::vector<float> handed_over() const {
    std::vector<float> values;
    for (const auto& bucket : recorded_.values) {
      values.push_back(bucket[0].item<float>());
      EXPECT_EQ(bucket.min().item<float>(), values.back());
      EXPECT_EQ(bucket.max().item<float>(), values.back());
    }
    return values;
  }

  static constexpr int64_t kLarge = int64_t{7} << 20;
  Vectors vectors_{{kLarge, kLarge, kLarge}};
  GradientSums sums_{vectors_.store()};
  Recorded recorded_;
};

TEST_F(ReducedSums, AreHandedOverWhileTheLastBackwardPassGoesOn) {
  std::vector<bool> first_was_there;
  sums_.reduce_with([&](const at::Tensor& bucket) {
    recorded_.values.push_back(bucket.clone());
    first_was_there.push_back(sums_.received(0));
    bucket.mul_(10);  // as a sum over processes would
  });
  for (int step = 0; step < 2; ++step) {
    sums_.begin_last_pass();
    vectors_.backward();
    EXPECT_THAT(first_was_there, ElementsAre(false, false, true));
    sums_.finish();
    EXPECT_EQ(recorded_.values.size(), 3U);
    EXPECT_EQ(sums_.sum(1)[5].item<float>(), recorded_.values[1][5].item<float>() * 10);
    sums_.drop();
    recorded_ = {};
    first_was_there.clear();
  }
}

TEST_F(ReducedSums, OfSeveralMicroBatchesAreHandedOverOnce) {
  const auto gradient = [this](size_t i, double value) { add_gradient(vectors_[i], at::full({kLarge}, value)); };
  for (const size_t i : {2U, 1U, 0U}) gradient(i, 1);
  for (const size_t i : {2U, 1U}) gradient(i, 2);
  EXPECT_THAT(handed_over(), ElementsAre());
  sums_.begin_last_pass();
  gradient(2, 4);
  EXPECT_THAT(handed_over(), ElementsAre(7));
  gradient(1, 8);
  gradient(0, 16);
  sums_.finish();
  EXPECT_THAT(handed_over(), ElementsAre(7, 11, 17));
}

/// Another process may have gradients of what has none here, and must find the buckets in the same order.
TEST_F(ReducedSums, OfParametersWithoutGradientAreZeroAndInTheirOrder) {
  const auto gradient = [this](size_t i, double value) { add_gradient(vectors_[i], at::full({kLarge}, value)); };
  for (const size_t i : {2U, 1U, 0U}) gradient(i, 5);  // of a step before
  sums_.finish();
  sums_.drop();
  recorded_ = {};
  gradient(2, 3);
  sums_.begin_last_pass();
  gradient(0, 1);
  EXPECT_THAT(handed_over(), ElementsAre()) << "those before it may not be complete";
  sums_.finish();
  EXPECT_THAT(handed_over(), ElementsAre(3, 0, 1));
  EXPECT_FALSE(sums_.received(1));
}

TEST_F(ReducedSums, AGradientThatComesTooLateIsAnError) {
  const auto ones = at::ones({kLarge});
  sums_.begin_last_pass();
  add_gradient(vectors_[2], ones);
  EXPECT_THROW(add_gradient(vectors_[2], ones), InternalError);
  sums_.drop();
  add_gradient(vectors_[2], ones);
  sums_.finish();
  EXPECT_THROW(add_gradient(vectors_[1], ones), InternalError);
  sums_.drop();
  recorded_ = {};
  add_gradient(vectors_[1], ones);
  sums_.finish();
  EXPECT_THAT(handed_over(), ElementsAre(0, 1, 0)) << "a step that was dropped leaves nothing behind";
}

TEST(GradientSums, OfAllGroupsAreHandedOverAtTheEnd) {
  Vectors vectors({100, 100});
  GradientSums sums(vectors.store(), 2);
  Recorded recorded;
  record(sums, recorded);
  sums.receive_for(1);
  sums.begin_last_pass();
  vectors.backward();
  EXPECT_TRUE(recorded.values.empty());
  sums.finish();
  ASSERT_THAT(recorded.elements, ElementsAre(256, 256));
  EXPECT_EQ(recorded.values[0].abs().max().item<float>(), 0);
  EXPECT_GT(recorded.values[1].abs().max().item<float>(), 0);
}

/// Blocks that are recomputed, and vision passes of a tile each: a parameter's gradient comes once in a backward pass
/// all the same.
TEST(GradientSums, OfAModelsStepAreHandedOverOnceAndWhole) {
  constexpr LearningRates kRates{1e-3, 1e-3, 1e-3};
  for (const int64_t micro_batch_size : {1, 3, 8}) {
    const auto step = [&](Recorded* recorded) {
      const auto model = parity::Case("mixed_batch").load_model();
      model->set_recompute({model->vision_blocks(), model->language_blocks()});
      model->set_vision_tiles_per_pass(1);
      Training training(*model, {});
      if (recorded != nullptr) record(training.sums, *recorded);
      const auto result = optimizer_step(training, batch_of_eight(), kRates, {.micro_batch_size = micro_batch_size});
      return result.grad_norm.item<float>();
    };
    Recorded recorded;
    EXPECT_EQ(step(&recorded), step(nullptr));
    ASSERT_EQ(recorded.values.size(), 1U) << "the model is smaller than a bucket";
    EXPECT_NEAR(recorded.values[0].norm().item<float>() / step(nullptr), 1, 1e-5);
  }
}

}  // namespace
}  // namespace vlmtrain::engine

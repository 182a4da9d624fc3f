#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>

#include "engine/small_step.h"
#include "parity/capability_record.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/distinct_samples.h"
#include "parity/logits.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::parity {
namespace {

/// Returns the parity cases, which cover many layouts, and a tiny preset of each family, whose
/// records cover all media.
std::vector<std::string> list_checkpoints() {
  auto names = case_names();
  for (const auto& preset : TinyPreset::names()) names.push_back(preset);
  return names;
}

/// Independence of the samples in a pack, whatever their order. Users of other trainers reported
/// "packing in which samples see each other, above all with MRoPE".
class PackingIsolation : public testing::TestWithParam<std::string> {
 protected:
  using Order = std::vector<int64_t>;

  PackingIsolation() {
    const auto cases = case_names();
    if (std::ranges::find(cases, GetParam()) != cases.end()) {
      load(Case(GetParam()).checkpoint(), Case(GetParam()).records());
    } else {
      preset_ = std::make_unique<TinyPreset>(GetParam());
      load(preset_->checkpoint(), preset_->records());
    }
  }
  void SetUp() override { record_capability(checkpoint_, "packs"); }
  void TearDown() override { deviations_.report(); }

  /// Returns the original order, its reverse, and two orders in which each sample has other
  /// neighbors.
  std::vector<Order> make_orders() const {
    Order forward(samples_.size());
    std::iota(forward.begin(), forward.end(), 0);
    Order backward(forward.rbegin(), forward.rend());
    Order rotated = forward;
    std::rotate(rotated.begin(), rotated.begin() + 2, rotated.end());
    Order odd_first = forward;
    std::stable_partition(odd_first.begin(), odd_first.end(), [](int64_t index) { return index % 2 == 1; });
    return {forward, backward, rotated, odd_first};
  }

  /// Returns the logits [labels, vocabulary], in the batch's order.
  at::Tensor compute_logits(const data::MicroBatch& batch) const {
    const at::NoGradGuard no_gradients;
    return parity::compute_logits(*model_, model_->forward(batch, {.positions = batch.label_positions}).hidden_states);
  }
  std::vector<at::Tensor> compute_logits(const Order& order) const {
    return split_logits(collate(samples_, order), order);
  }
  std::vector<at::Tensor> split_logits(const data::MicroBatch& batch, const Order& order) const {
    const at::Tensor logits = compute_logits(batch);
    std::vector<at::Tensor> result;
    int64_t first = 0;
    for (const int64_t index : order) {
      const int64_t rows = samples_[static_cast<size_t>(index)].label_tokens();
      result.push_back(logits.narrow(0, first, rows));
      first += rows;
    }
    return result;
  }

  /// Returns the mean over a sample's labels.
  double compute_loss(int64_t index, const at::Tensor& logits) const {
    const at::Tensor labels = collate(samples_, Order{index}).labels;
    return at::cross_entropy_loss(logits.to(at::kDouble), labels).item<double>();
  }

  /// Returns the pixel rows of a sample in a batch of all samples in their own order; undefined
  /// without pixels.
  at::Tensor find_sample_pixels(const data::MicroBatch& batch, int64_t index) const {
    const at::Tensor& sample_pixels = samples_[static_cast<size_t>(index)].pixel_values;
    if (!sample_pixels.defined()) return {};
    int64_t first = 0;
    for (const auto& previous_sample : std::span(samples_).first(static_cast<size_t>(index))) {
      if (previous_sample.pixel_values.defined()) first += previous_sample.pixel_values.size(0);
    }
    return batch.pixel_values.narrow(0, first, sample_pixels.size(0));
  }

  /// Returns the gradients of the sum over the labels of `samples`, by name.
  std::map<std::string, at::Tensor> compute_gradients(std::span<const data::Sample> samples) {
    int64_t labels = 0;
    for (const auto& sample : samples) labels += sample.label_tokens();
    for (const auto& parameter : model_->parameters().all()) parameter.tensor.mutable_grad() = at::Tensor();
    engine::accumulate_gradients(*model_, samples, {.micro_batch_size = std::ssize(samples)});
    std::map<std::string, at::Tensor> result;
    for (const auto& parameter : model_->parameters().all()) {
      if (parameter.tensor.grad().defined()) result[parameter.name] = parameter.tensor.grad() * labels;
    }
    return result;
  }

  std::unique_ptr<TinyPreset> preset_;
  std::filesystem::path checkpoint_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::vector<data::Sample> samples_;
  Deviations deviations_;

 private:
  void load(const std::filesystem::path& checkpoint, const std::vector<io::Record>& records) {
    checkpoint_ = checkpoint;
    model_ = models::build_model(checkpoint, at::kCPU, at::kFloat);
    models::load_weights(*model_, checkpoint);
    samples_ = make_distinct_samples(*models::load_processor(checkpoint, {}), records);
  }
};

TEST_P(PackingIsolation, PackedLossEqualsSingleLoss) {
  std::vector<at::Tensor> single_logits;
  for (int64_t index = 0; index < std::ssize(samples_); ++index)
    single_logits.push_back(compute_logits(Order{index}).front());
  for (const Order& order : make_orders()) {
    const auto packed_logits = compute_logits(order);
    for (size_t i = 0; i < order.size(); ++i) {
      const at::Tensor& expected = single_logits[static_cast<size_t>(order[i])];
      const auto& id = samples_[static_cast<size_t>(order[i])].id;
      const double loss = compute_loss(order[i], expected);
      deviations_.expect_at_most(1e-6, std::abs(compute_loss(order[i], packed_logits[i]) - loss) / loss, "loss", id);
      deviations_.expect_at_most(1e-5, relative_difference(packed_logits[i], expected), "logits", id);
    }
  }
}

TEST_P(PackingIsolation, OtherSamplesDoNotChangeLogits) {
  const Order order = make_orders().front();
  const auto expected = compute_logits(order);
  for (const int64_t changed_index : order) {
    auto batch = collate(samples_, order);
    const int64_t first = batch.segments.offsets[changed_index].item<int64_t>();
    const int64_t tokens = samples_[static_cast<size_t>(changed_index)].tokens();
    const auto& image_token_positions = samples_[static_cast<size_t>(changed_index)].image_token_positions;
    // Other words and pixels in the same places. Image tokens and positions stay.
    for (int64_t token = 0; token < tokens; ++token) {
      if (!std::ranges::binary_search(image_token_positions, token))
        batch.token_ids[first + token] = 5 + (token * token + 3) % 50;
    }
    if (const at::Tensor pixels = find_sample_pixels(batch, changed_index); pixels.defined())
      pixels.copy_(pixels.flip(-1));
    const auto actual = split_logits(batch, order);
    for (size_t i = 0; i < order.size(); ++i) {
      const bool is_equal = at::equal(actual[i], expected[i]);
      EXPECT_EQ(is_equal, order[i] != changed_index)
          << samples_[static_cast<size_t>(order[i])].id << " next to another "
          << samples_[static_cast<size_t>(changed_index)].id;
    }
  }
}

TEST_P(PackingIsolation, GradientIsTheSumOfSingleGradients) {
  std::map<std::string, at::Tensor> expected;
  for (const auto& sample : samples_) {
    for (const auto& [name, gradient] : compute_gradients(std::span(&sample, 1))) {
      at::Tensor& sum = expected[name];
      sum = sum.defined() ? sum + gradient.to(at::kDouble) : gradient.to(at::kDouble);
    }
  }
  double largest = 0;
  for (const auto& [name, gradient] : expected) largest = std::max(largest, gradient.abs().max().item<double>());
  const auto actual = compute_gradients(samples_);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, gradient] : actual) {
    // Pure rounding error (deviations.h) has no meaningful relative difference.
    const double difference = (gradient - expected.at(name)).abs().max().item<double>();
    deviations_.expect_at_most(2e-6, difference / largest, "gradient, of the largest", name);
    if (has_zero_true_gradient(name)) continue;
    deviations_.expect_at_most(
        2e-5, relative_difference(drop_key_bias(name, gradient), drop_key_bias(name, expected.at(name))), "gradient",
        name);
  }
}

/// Shows that the tests above detect a fault: samples joined as if they were one.
TEST_P(PackingIsolation, SharedSegmentChangesLogits) {
  const Order order = make_orders().front();
  const auto expected = compute_logits(order);
  auto batch = collate(samples_, order);
  batch.segments = nn::Segments::from_lengths({batch.tokens()}, at::kCPU);
  const auto actual = split_logits(batch, order);
  double largest = 0;  // a sample longer than a sliding window is outside the others' window
  for (size_t i = 0; i < actual.size(); ++i) largest = std::max(largest, relative_difference(actual[i], expected[i]));
  EXPECT_GT(largest, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Cases, PackingIsolation, testing::ValuesIn(list_checkpoints()),
                         [](const auto& instance) { return TinyPreset::make_test_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::parity

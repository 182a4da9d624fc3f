#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>

#include "engine/small_step.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/evidence.h"
#include "parity/tiny_preset.h"
#include "parity/unlike_samples.h"
#include "vlmtrain/data/micro_batch.h"

namespace vlmtrain::parity {
namespace {

/// The parity cases, whose layouts are many, and a tiny preset of each family, whose records are of all kinds.
std::vector<std::string> all_checkpoints() {
  auto names = case_names();
  for (const auto& preset : TinyPreset::names()) names.push_back(preset);
  return names;
}

/// Samples that do not see each other, however they lie in a pack: "packing in which samples see each other, above all
/// with MRoPE" is what users of other trainers report.
class PackingIsolation : public testing::TestWithParam<std::string> {
 protected:
  using Places = std::vector<int64_t>;

  PackingIsolation() {
    const auto cases = case_names();
    if (std::ranges::find(cases, GetParam()) != cases.end()) {
      load(Case(GetParam()).checkpoint(), Case(GetParam()).records());
    } else {
      preset_ = std::make_unique<TinyPreset>(GetParam());
      load(preset_->checkpoint(), preset_->records());
    }
  }
  void SetUp() override { shows(checkpoint_, "packs"); }
  void TearDown() override { deviations_.report(); }

  /// As they come, from the last, and two others, in which each sample has other neighbours.
  std::vector<Places> orders() const {
    Places forward(samples_.size());
    std::iota(forward.begin(), forward.end(), 0);
    Places backward(forward.rbegin(), forward.rend());
    Places turned = forward;
    std::rotate(turned.begin(), turned.begin() + 2, turned.end());
    Places odd_first = forward;
    std::stable_partition(odd_first.begin(), odd_first.end(), [](int64_t place) { return place % 2 == 1; });
    return {forward, backward, turned, odd_first};
  }

  /// [labels, vocabulary] of the samples at these places, in their order.
  at::Tensor logits_of(const data::MicroBatch& batch) const {
    const at::NoGradGuard no_gradients;
    return at::mm(model_->forward(batch, {.positions = batch.label_positions}).hidden, model_->output_weight().t());
  }
  std::vector<at::Tensor> logits_of(const Places& places) const { return in_parts(collate(samples_, places), places); }
  std::vector<at::Tensor> in_parts(const data::MicroBatch& batch, const Places& places) const {
    const at::Tensor all = logits_of(batch);
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (const int64_t place : places) {
      const int64_t rows = samples_[static_cast<size_t>(place)].label_tokens();
      parts.push_back(all.narrow(0, first, rows));
      first += rows;
    }
    return parts;
  }

  /// The mean over a sample's labels.
  double loss_of(int64_t place, const at::Tensor& logits) const {
    const at::Tensor labels = collate(samples_, Places{place}).labels;
    return at::cross_entropy_loss(logits.to(at::kDouble), labels).item<double>();
  }

  /// Where the rows of a sample's pixels lie in a batch of all in their own order; undefined: it has none.
  at::Tensor pixels_of(const data::MicroBatch& batch, int64_t place) const {
    const at::Tensor& own = samples_[static_cast<size_t>(place)].pixel_values;
    if (!own.defined()) return {};
    int64_t first = 0;
    for (const auto& before : std::span(samples_).first(static_cast<size_t>(place))) {
      if (before.pixel_values.defined()) first += before.pixel_values.size(0);
    }
    return batch.pixel_values.narrow(0, first, own.size(0));
  }

  /// Gradients of the sum over the labels of `samples`, by name.
  std::map<std::string, at::Tensor> gradients_of(std::span<const data::Sample> samples) {
    int64_t labels = 0;
    for (const auto& sample : samples) labels += sample.label_tokens();
    for (const auto& parameter : model_->parameters().all()) parameter.tensor.mutable_grad() = at::Tensor();
    engine::accumulate_gradients(*model_, samples, {.micro_batch_size = std::ssize(samples)});
    std::map<std::string, at::Tensor> found;
    for (const auto& parameter : model_->parameters().all()) {
      if (parameter.tensor.grad().defined()) found[parameter.name] = parameter.tensor.grad() * labels;
    }
    return found;
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
    samples_ = unlike_samples(*models::load_processor(checkpoint, {}), records);
  }
};

TEST_P(PackingIsolation, EachSampleHasTheLossThatItHasAlone) {
  std::vector<at::Tensor> alone;
  for (int64_t place = 0; place < std::ssize(samples_); ++place) alone.push_back(logits_of(Places{place}).front());
  for (const Places& order : orders()) {
    const auto packed = logits_of(order);
    for (size_t i = 0; i < order.size(); ++i) {
      const at::Tensor& wanted = alone[static_cast<size_t>(order[i])];
      const auto& id = samples_[static_cast<size_t>(order[i])].id;
      const double loss = loss_of(order[i], wanted);
      deviations_.expect_at_most(1e-6, std::abs(loss_of(order[i], packed[i]) - loss) / loss, "loss", id);
      deviations_.expect_at_most(1e-5, relative_difference(packed[i], wanted), "logits", id);
    }
  }
}

TEST_P(PackingIsolation, ANeighbourOfTheSameSizeChangesNoBit) {
  const Places order = orders().front();
  const auto wanted = logits_of(order);
  for (const int64_t changed : order) {
    auto batch = collate(samples_, order);
    const int64_t first = batch.segments.offsets[changed].item<int64_t>();
    const int64_t tokens = samples_[static_cast<size_t>(changed)].tokens();
    const auto& places = samples_[static_cast<size_t>(changed)].image_token_positions;
    // Other words and pixels in the same places. Tokens that take features stay, and so do positions.
    for (int64_t token = 0; token < tokens; ++token) {
      if (!std::ranges::binary_search(places, token)) batch.token_ids[first + token] = 5 + (token * token + 3) % 50;
    }
    if (const at::Tensor pixels = pixels_of(batch, changed); pixels.defined()) pixels.copy_(pixels.flip(-1));
    const auto found = in_parts(batch, order);
    for (size_t i = 0; i < order.size(); ++i) {
      const bool is_equal = at::equal(found[i], wanted[i]);
      EXPECT_EQ(is_equal, order[i] != changed) << samples_[static_cast<size_t>(order[i])].id << " beside another "
                                               << samples_[static_cast<size_t>(changed)].id;
    }
  }
}

TEST_P(PackingIsolation, TheGradientIsTheSumOfThoseOfEachAlone) {
  std::map<std::string, at::Tensor> wanted;
  for (const auto& sample : samples_) {
    for (const auto& [name, gradient] : gradients_of(std::span(&sample, 1))) {
      at::Tensor& sum = wanted[name];
      sum = sum.defined() ? sum + gradient.to(at::kDouble) : gradient.to(at::kDouble);
    }
  }
  double largest = 0;
  for (const auto& [name, gradient] : wanted) largest = std::max(largest, gradient.abs().max().item<double>());
  const auto found = gradients_of(samples_);
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, gradient] : found) {
    // What is nothing but rounding (deviations.h) cannot be compared relatively.
    const double difference = (gradient - wanted.at(name)).abs().max().item<double>();
    deviations_.expect_at_most(2e-6, difference / largest, "gradient, of the largest", name);
    if (has_zero_true_gradient(name)) continue;
    deviations_.expect_at_most(
        2e-5, relative_difference(with_true_gradient(name, gradient), with_true_gradient(name, wanted.at(name))),
        "gradient", name);
  }
}

/// What the tests above are to notice: samples end to end as if they were one.
TEST_P(PackingIsolation, ASharedSegmentWouldBeNoticed) {
  const Places order = orders().front();
  const auto wanted = logits_of(order);
  auto batch = collate(samples_, order);
  batch.segments = nn::Segments::from_lengths({batch.tokens()}, at::kCPU);
  const auto found = in_parts(batch, order);
  double largest = 0;  // a sample longer than a sliding window is out of the others' sight
  for (size_t i = 0; i < found.size(); ++i) largest = std::max(largest, relative_difference(found[i], wanted[i]));
  EXPECT_GT(largest, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Cases, PackingIsolation, testing::ValuesIn(all_checkpoints()),
                         [](const auto& instance) { return TinyPreset::test_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::parity

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "parity/deviations.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/layers/recompute.h"

namespace vlmtrain::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kRows = 20;  // enough rows for oneDNN's product
constexpr int64_t kIn = 6;
constexpr int64_t kOut = 10;

using parity::relative_difference;

ParameterStore make_double_store(const LoraSettings& lora) {
  return ParameterStore(ParameterSettings{at::TensorOptions(at::kDouble), lora});
}

void randomize(const ParameterStore& store) {
  at::manual_seed(1);
  for (const auto& parameter : store.all()) parameter.tensor.detach().normal_();
}

at::Tensor find_tensor(const ParameterStore& store, const std::string& name) {
  for (const auto& parameter : store.all()) {
    if (parameter.name == name) return parameter.tensor;
  }
  throw InternalError(name);
}

/// A Linear named `up` with adapters, and the reference with W + scale · B A.
class LoraLinear : public testing::TestWithParam<LoraSettings> {
 protected:
  LoraLinear() { randomize(store_); }

  at::Tensor merged_weight() const {
    const at::Tensor sum = weight_ + GetParam().scale() * at::mm(b_, a_);
    if (!GetParam().use_dora) return sum;
    return (find_tensor(store_, "up.lora_magnitude_vector") / sum.detach().norm(2, {1})).unsqueeze(1) * sum;
  }

  std::vector<at::Tensor> collect_inputs(const at::Tensor& x) const {
    std::vector<at::Tensor> tensors{x};
    for (const auto& parameter : store_.all()) {
      if (parameter.is_adapter) tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  ParameterStore store_ = make_double_store(GetParam());
  const Linear linear_{ParameterScope(store_, Component::kLanguageModel, "up"), kIn, kOut, /*bias=*/true};
  const at::Tensor weight_ = find_tensor(store_, "up.weight");
  const at::Tensor bias_ = find_tensor(store_, "up.bias");
  const at::Tensor a_ = find_tensor(store_, "up.lora_A.weight");
  const at::Tensor b_ = find_tensor(store_, "up.lora_B.weight");
};

TEST_P(LoraLinear, IsTheProductWithTheMergedWeight) {
  const at::Tensor x = at::randn({kRows, kIn}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = linear_(x);
  const at::Tensor expected = at::linear(x, merged_weight(), bias_);
  EXPECT_LT(relative_difference(y, expected), 1e-14);

  const at::Tensor direction = at::randn_like(y);
  const auto actual_grads = torch::autograd::grad({y}, collect_inputs(x), {direction});
  const auto expected_grads = torch::autograd::grad({expected}, collect_inputs(x), {direction});
  for (size_t i = 0; i < expected_grads.size(); ++i)
    EXPECT_LT(relative_difference(actual_grads[i], expected_grads[i]), 1e-14) << i;
}

TEST_P(LoraLinear, TrainsTheAdapterOnly) {
  EXPECT_EQ(a_.sizes(), at::IntArrayRef({GetParam().rank, kIn}));
  EXPECT_EQ(b_.sizes(), at::IntArrayRef({kOut, GetParam().rank}));
  for (const auto& parameter : store_.all()) {
    EXPECT_EQ(parameter.tensor.requires_grad(), parameter.is_adapter) << parameter.name;
    EXPECT_EQ(parameter.is_adapter, parameter.name.find("lora_") != std::string::npos) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, LoraLinear,
                         testing::Values(LoraSettings{.rank = 4, .alpha = 8}, LoraSettings{.rank = 1, .alpha = 0.5},
                                         LoraSettings{.rank = 9, .alpha = 2, .use_rslora = true},
                                         LoraSettings{.rank = 3, .alpha = 6, .use_dora = true}));

TEST(LoraSettingsTest, ScalesByTheRankOrItsRoot) {
  EXPECT_EQ((LoraSettings{.rank = 16, .alpha = 8}).scale(), 0.5);
  EXPECT_EQ((LoraSettings{.rank = 16, .alpha = 8, .use_rslora = true}).scale(), 2);
}

TEST(LoraTargetTest, NamesAreTheEndOfAPath) {
  const std::string path = "model.text_model.layers.10.self_attn.q_proj";
  for (const char* target : {"all-linear", "q_proj", "self_attn.q_proj", "10.self_attn.q_proj", path.c_str()}) {
    EXPECT_TRUE(LoraTarget(target).matches(path)) << target;
  }
  for (const char* target : {"proj", "k_proj", "self_attn", "0.self_attn.q_proj", "q_proj.", "model"}) {
    EXPECT_FALSE(LoraTarget(target).matches(path)) << target;
  }
}

TEST(LoraTargetTest, ExpressionsAreOfTheWholePath) {
  const std::string path = "model.text_model.layers.10.self_attn.q_proj";
  for (const char* target :
       {R"(.*\.(q|v)_proj)", R"(model\.text_model\.layers\.\d+\.self_attn\.q_proj)", "(?!.*vision).*"}) {
    EXPECT_TRUE(LoraTarget(target).matches(path)) << target;
  }
  for (const char* target : {"(q|v)_proj", "model.*vision_model.*", R"(.*self_attn\.q)"}) {
    EXPECT_FALSE(LoraTarget(target).matches(path)) << target;
  }
  EXPECT_THROW(LoraTarget("q_proj("), UserError);
}

TEST(LoraTargetTest, SlowExpressionIsRejected) {
  const std::string path = "model.text_model.layers.10.self_attn.q_proj";
  EXPECT_FALSE(LoraTarget("(a*)*(.*)*(.*)*(.*)*(.*)*(.*)*b$").matches(path)) << "there is no b";
  try {
    LoraTarget("(a*)*(.*)*(.*)*(.*)*(.*)*(.*)*[A-Z]").matches(path);
    ADD_FAILURE() << "was matched";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("takes too long"), std::string::npos) << error.what();
  }
}

TEST(LoraTargetTest, DeepNestingDoesNotCrash) {
  constexpr size_t kDepth = 20'000;
  EXPECT_THROW(LoraTarget(std::string(kDepth, '(') + std::string(kDepth, ')')), UserError);
}

TEST(LoraTargetTest, ComponentsCanBeExcluded) {
  ParameterStore store = make_double_store(
      {.target_modules = {"q_proj", "fc1", "absent"}, .excluded_components = {Component::kVisionTower}});
  const ParameterScope tower(store, Component::kVisionTower, "vision");
  const ParameterScope text(store, Component::kLanguageModel, "text");
  const Linear first(tower / "q_proj", kIn, kOut, false);
  const Linear second(text / "q_proj", kIn, kOut, false);
  const Linear third(tower / "fc1", kIn, kOut, false);
  std::vector<std::string> adapters;
  for (const auto& parameter : store.all()) {
    if (parameter.is_adapter) adapters.push_back(parameter.name);
  }
  EXPECT_THAT(adapters, ElementsAre("text.q_proj.lora_A.weight", "text.q_proj.lora_B.weight"));
  EXPECT_THAT(store.find_unmatched_targets(), ElementsAre("fc1", "absent"));
}

TEST(LoraTargetTest, WithoutSettingsNothingIsAdapted) {
  ParameterStore store{at::TensorOptions(at::kFloat)};
  const Linear linear(ParameterScope(store, Component::kProjector, "up"), kIn, kOut, true);
  EXPECT_EQ(store.all().size(), 2U);
  EXPECT_TRUE(store.all()[0].tensor.requires_grad());
  EXPECT_THAT(store.find_unmatched_targets(), IsEmpty());
}

constexpr double kDropout = 0.5;

/// Custom kernels, emulated in one run of these tests, do not support fp64.
at::ScalarType get_dropout_dtype() {
  return kernels::is_available(kernels::Kernel::kDropout, at::empty({1})) ? at::kFloat : at::kDouble;
}
double get_tolerance() {
  return get_dropout_dtype() == at::kFloat ? 3e-6 : 1e-14;
}

ParameterStore make_dropout_store(bool use_dora = false) {
  return ParameterStore(ParameterSettings{
      at::TensorOptions(get_dropout_dtype()),
      LoraSettings{.rank = 3, .alpha = 3, .dropout = kDropout, .use_dora = use_dora},
  });
}

DropoutScope make_dropout_scope() {
  return DropoutScope(std::vector<DropoutSegment>{{.seed = 5, .row_weight = 1}, {.seed = 6, .row_weight = 3}});
}

/// Returns x after the dropout of the adapter named `up`.
at::Tensor apply_dropout(const at::Tensor& x) {
  const DropoutScope scope = make_dropout_scope();
  return segment_dropout(x, kDropout, derive_stream_seed(0, "up"));
}

/// Half of an adapter's inputs are dropped. B A is random and W zero, so the output is that of the
/// adapter.
class LoraDropout : public testing::Test {
 protected:
  LoraDropout() {
    randomize(store_);
    find_tensor(store_, "up.weight").detach().zero_();
  }

  at::Tensor run() const {
    const DropoutScope scope = make_dropout_scope();
    return linear_(x_);
  }

  ParameterStore store_ = make_dropout_store();
  const Linear linear_{ParameterScope(store_, Component::kLanguageModel, "up"), kIn, kOut, /*bias=*/false};
  const at::Tensor a_ = find_tensor(store_, "up.lora_A.weight");
  const at::Tensor b_ = find_tensor(store_, "up.lora_B.weight");
  const at::Tensor x_ = at::ones({kRows, kIn}, get_dropout_dtype());
};

TEST_F(LoraDropout, DropsTheInputsOfTheAdapter) {
  const at::Tensor y = run();
  EXPECT_LT(relative_difference(y, at::mm(at::mm(apply_dropout(x_), a_.t()), b_.t())), get_tolerance());
  EXPECT_TRUE(at::equal(run(), y));
}

TEST_F(LoraDropout, DiffersBetweenAdapters) {
  const Linear other{ParameterScope(store_, Component::kLanguageModel, "down"), kIn, kOut, /*bias=*/false};
  find_tensor(store_, "down.weight").detach().zero_();
  find_tensor(store_, "down.lora_A.weight").detach().copy_(a_.detach());
  find_tensor(store_, "down.lora_B.weight").detach().copy_(b_.detach());
  const DropoutScope scope = make_dropout_scope();
  EXPECT_FALSE(at::equal(other(x_), linear_(x_)));
}

/// Three adapters of one input with the same A and B.
class LoraGroupDropout : public testing::Test {
 protected:
  LoraGroupDropout() {
    randomize(store_);
    for (const char* name : {"q", "k", "v"}) {
      const std::string path = std::string("at.") + name;
      find_tensor(store_, path + ".weight").detach().zero_();
      find_tensor(store_, path + ".lora_A.weight").detach().copy_(find_tensor(store_, "at.q.lora_A.weight").detach());
      find_tensor(store_, path + ".lora_B.weight").detach().copy_(find_tensor(store_, "at.q.lora_B.weight").detach());
    }
  }

  at::Tensor run(const at::Tensor& x, std::vector<DropoutSegment> units) const {
    const DropoutScope scope(std::move(units));
    return linears_(x);
  }

  ParameterStore store_ = make_dropout_store();
  const MergedLinear linears_{ParameterScope(store_, Component::kLanguageModel, "at"),
                              {"q", "k", "v"},
                              kIn,
                              {kOut, kOut, kOut},
                              /*bias=*/false};
  const at::Tensor x_ = at::randn({kRows, kIn}, get_dropout_dtype());
};

TEST_F(LoraGroupDropout, DiffersBetweenAdapters) {
  const auto outputs = run(x_, {{.seed = 5, .row_weight = 1}, {.seed = 6, .row_weight = 3}}).chunk(3, 1);
  EXPECT_GT(relative_difference(outputs[0], outputs[1]), 0.1);
  EXPECT_GT(relative_difference(outputs[0], outputs[2]), 0.1);
  EXPECT_GT(relative_difference(outputs[1], outputs[2]), 0.1);
}

TEST_F(LoraGroupDropout, DoesNotDependOnTheSplit) {
  const at::Tensor full_output = run(x_, {{.seed = 5, .row_weight = 1}, {.seed = 6, .row_weight = 3}});
  const at::Tensor first = run(x_.narrow(0, 0, kRows / 4), {{.seed = 5}});
  const at::Tensor second_output = run(x_.narrow(0, kRows / 4, kRows * 3 / 4), {{.seed = 6}});
  EXPECT_LT(relative_difference(at::cat({first, second_output}), full_output), get_tolerance());
}

TEST_F(LoraGroupDropout, GradientsUseTheSameDropout) {
  const at::Tensor x = x_.clone().set_requires_grad(true);
  const std::vector<DropoutSegment> units{{.seed = 5, .row_weight = 1}, {.seed = 6, .row_weight = 3}};
  const DropoutScope scope(units);
  std::vector<at::Tensor> inputs{x}, parts, consumer_outputs;
  IndependentDropouts(x, 3, kDropout, derive_stream_seed(0, "at.q"))
      .apply(at::ones_like(x),
             [&](int64_t /*reader*/, const at::Tensor& output) { consumer_outputs.push_back(output); });
  auto consumer_output = consumer_outputs.begin();
  for (const std::string path : {"at.q", "at.k", "at.v"}) {
    const at::Tensor a = find_tensor(store_, path + ".lora_A.weight"), b = find_tensor(store_, path + ".lora_B.weight");
    parts.push_back(at::mm(at::mm(x * *consumer_output++, a.t()), b.t()));
    inputs.push_back(a);
    inputs.push_back(b);
  }
  const at::Tensor expected = at::cat(parts, 1), y = linears_(x);
  EXPECT_LT(relative_difference(y, expected), get_tolerance());
  const at::Tensor direction = at::randn_like(y);
  const auto actual_grads = torch::autograd::grad({y}, inputs, {direction});
  const auto expected_grads = torch::autograd::grad({expected}, inputs, {direction});
  for (size_t i = 0; i < inputs.size(); ++i)
    EXPECT_LT(relative_difference(actual_grads[i], expected_grads[i]), 10 * get_tolerance()) << i;
}

TEST_F(LoraDropout, IsRejectedOutsideADropoutScope) {
  EXPECT_THROW(linear_(x_), InternalError);
}

TEST_F(LoraDropout, IsOffWithoutGradients) {
  const at::AutoGradMode no_gradients(false);
  const at::Tensor reference_output = at::mm(at::mm(x_, a_.t()), b_.t());
  EXPECT_LT(relative_difference(run(), reference_output), get_tolerance());
  const at::Tensor recomputed = run_checkpointed([this](const at::Tensor& x) { return linear_(x); }, x_, {a_, b_});
  EXPECT_LT(relative_difference(recomputed, reference_output), get_tolerance());
}

TEST_F(LoraDropout, IsTheSameWhenABlockRunsAgain) {
  const at::Tensor plain = run();
  const auto expected = torch::autograd::grad({plain.pow(2).sum()}, {a_, b_});
  at::Tensor recomputed;
  {
    const DropoutScope scope = make_dropout_scope();
    recomputed = run_checkpointed([this](const at::Tensor& input) { return linear_(input); }, x_, {a_, b_});
  }
  EXPECT_TRUE(at::equal(recomputed, plain));
  const auto actual_grads = torch::autograd::grad({recomputed.pow(2).sum()}, {a_, b_});
  EXPECT_TRUE(at::equal(actual_grads[0], expected[0]));
  EXPECT_TRUE(at::equal(actual_grads[1], expected[1]));
}

TEST(Dora, MatchesPeftWithDropout) {
  ParameterStore store = make_dropout_store(/*use_dora=*/true);
  const Linear linear(ParameterScope(store, Component::kLanguageModel, "up"), kIn, kOut, /*bias=*/true);
  randomize(store);
  const at::Tensor x = at::randn({kRows, kIn}, get_dropout_dtype());
  const at::Tensor dropout_x = apply_dropout(x);
  const DropoutScope scope = make_dropout_scope();
  const at::Tensor y = linear(x);

  // As in PEFT: base + (f − 1) · W segment_dropout(x) + f · scale · B A segment_dropout(x).
  const at::Tensor weight = find_tensor(store, "up.weight");
  const at::Tensor product = at::mm(find_tensor(store, "up.lora_B.weight"), find_tensor(store, "up.lora_A.weight"));
  const at::Tensor factor = find_tensor(store, "up.lora_magnitude_vector") / (weight + product).norm(2, {1});
  const at::Tensor expected = at::linear(x, weight, find_tensor(store, "up.bias")) +
                              (factor - 1) * at::linear(dropout_x, weight) + factor * at::linear(dropout_x, product);
  EXPECT_LT(relative_difference(y, expected), get_tolerance());
}

TEST(FrozenLinear, KeepsNoInput) {
  const at::Tensor x =
      at::randn({kRows, kIn}).set_requires_grad(true).neg();  // not a leaf, which its gradient would hold
  const auto count_references = [&x] { return x.use_count() + x.storage().use_count(); };
  const auto before = count_references();
  const at::Tensor frozen = linear(x, at::randn({kOut, kIn}), at::randn({kOut}));
  EXPECT_EQ(count_references(), before);
  const at::Tensor trained = linear(x, at::randn({kOut, kIn}).set_requires_grad(true), at::randn({kOut}));
  EXPECT_GT(count_references(), before);
}

}  // namespace
}  // namespace vlmtrain::nn

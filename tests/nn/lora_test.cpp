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
#include "vlmtrain/base/rng.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/dropout.h"
#include "vlmtrain/nn/linear.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kRows = 20;  // enough for oneDNN's product
constexpr int64_t kIn = 6;
constexpr int64_t kOut = 10;

using parity::relative_difference;

ParameterStore double_store(const LoraSettings& lora) {
  return ParameterStore(ParameterSettings{at::TensorOptions(at::kDouble), lora});
}

void randomise(const ParameterStore& store) {
  at::manual_seed(1);
  for (const auto& parameter : store.all()) parameter.tensor.detach().normal_();
}

at::Tensor tensor_of(const ParameterStore& store, const std::string& name) {
  for (const auto& parameter : store.all()) {
    if (parameter.name == name) return parameter.tensor;
  }
  throw InternalError(name);
}

/// A Linear named `up` with adapters, and the product of W + scale · B A in its place.
class LoraLinear : public testing::TestWithParam<LoraSettings> {
 protected:
  LoraLinear() { randomise(store_); }

  at::Tensor merged_weight() const {
    const at::Tensor sum = weight_ + GetParam().scale() * at::mm(b_, a_);
    if (!GetParam().use_dora) return sum;
    return (tensor_of(store_, "up.lora_magnitude_vector") / sum.detach().norm(2, {1})).unsqueeze(1) * sum;
  }

  std::vector<at::Tensor> with_trained(const at::Tensor& x) const {
    std::vector<at::Tensor> tensors{x};
    for (const auto& parameter : store_.all()) {
      if (parameter.is_adapter) tensors.push_back(parameter.tensor);
    }
    return tensors;
  }

  ParameterStore store_ = double_store(GetParam());
  const Linear linear_{ParameterScope(store_, Component::kLanguageModel, "up"), kIn, kOut, /*bias=*/true};
  const at::Tensor weight_ = tensor_of(store_, "up.weight");
  const at::Tensor bias_ = tensor_of(store_, "up.bias");
  const at::Tensor a_ = tensor_of(store_, "up.lora_A.weight");
  const at::Tensor b_ = tensor_of(store_, "up.lora_B.weight");
};

TEST_P(LoraLinear, IsTheProductWithTheMergedWeight) {
  const at::Tensor x = at::randn({kRows, kIn}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = linear_(x);
  const at::Tensor wanted = at::linear(x, merged_weight(), bias_);
  EXPECT_LT(relative_difference(y, wanted), 1e-14);

  const at::Tensor direction = at::randn_like(y);
  const auto found = torch::autograd::grad({y}, with_trained(x), {direction});
  const auto expected = torch::autograd::grad({wanted}, with_trained(x), {direction});
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(relative_difference(found[i], expected[i]), 1e-14) << i;
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

TEST(LoraTargetTest, AnExpressionThatTakesTooLongIsRefused) {
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

TEST(LoraTargetTest, DeepNestingIsNoCrash) {
  constexpr size_t kDepth = 20'000;
  EXPECT_THROW(LoraTarget(std::string(kDepth, '(') + std::string(kDepth, ')')), UserError);
}

TEST(LoraTargetTest, ComponentsMayBeLeftOut) {
  ParameterStore store =
      double_store({.target_modules = {"q_proj", "fc1", "absent"}, .left_out = {Component::kVisionTower}});
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
  EXPECT_THAT(store.targets_without_linear(), ElementsAre("fc1", "absent"));
}

TEST(LoraTargetTest, WithoutSettingsNothingIsAdapted) {
  ParameterStore store{at::TensorOptions(at::kFloat)};
  const Linear linear(ParameterScope(store, Component::kProjector, "up"), kIn, kOut, true);
  EXPECT_EQ(store.all().size(), 2U);
  EXPECT_TRUE(store.all()[0].tensor.requires_grad());
  EXPECT_THAT(store.targets_without_linear(), IsEmpty());
}

constexpr double kDropped = 0.5;

/// Own kernels, which are emulated in a run of these tests, do not compute in fp64.
at::ScalarType dropout_type() {
  return kernels::has(kernels::Kernel::kDropout, at::empty({1})) ? at::kFloat : at::kDouble;
}
double rounding() {
  return dropout_type() == at::kFloat ? 3e-6 : 1e-14;
}

ParameterStore dropout_store(bool use_dora = false) {
  return ParameterStore(ParameterSettings{
      at::TensorOptions(dropout_type()),
      LoraSettings{.rank = 3, .alpha = 3, .dropout = kDropped, .use_dora = use_dora},
  });
}

DropoutScope scope_of_rows() {
  return DropoutScope(std::vector<DropoutUnit>{{.seed = 5, .share = 1}, {.seed = 6, .share = 3}});
}

/// What the dropout of the adapter named `up` makes of x.
at::Tensor drop(const at::Tensor& x) {
  const DropoutScope scope = scope_of_rows();
  return unit_dropout(x, kDropped, stream_seed(0, "up"));
}

/// Half of an adapter's inputs are dropped; B A is random, W zero, so that the output is the adapter's alone.
class LoraDropout : public testing::Test {
 protected:
  LoraDropout() {
    randomise(store_);
    tensor_of(store_, "up.weight").detach().zero_();
  }

  at::Tensor run() const {
    const DropoutScope scope = scope_of_rows();
    return linear_(x_);
  }

  ParameterStore store_ = dropout_store();
  const Linear linear_{ParameterScope(store_, Component::kLanguageModel, "up"), kIn, kOut, /*bias=*/false};
  const at::Tensor a_ = tensor_of(store_, "up.lora_A.weight");
  const at::Tensor b_ = tensor_of(store_, "up.lora_B.weight");
  const at::Tensor x_ = at::ones({kRows, kIn}, dropout_type());
};

TEST_F(LoraDropout, DropsTheInputsOfTheAdapter) {
  const at::Tensor y = run();
  EXPECT_LT(relative_difference(y, at::mm(at::mm(drop(x_), a_.t()), b_.t())), rounding());
  EXPECT_TRUE(at::equal(run(), y));
}

TEST_F(LoraDropout, DiffersFromAdapterToAdapter) {
  const Linear other{ParameterScope(store_, Component::kLanguageModel, "down"), kIn, kOut, /*bias=*/false};
  tensor_of(store_, "down.weight").detach().zero_();
  tensor_of(store_, "down.lora_A.weight").detach().copy_(a_.detach());
  tensor_of(store_, "down.lora_B.weight").detach().copy_(b_.detach());
  const DropoutScope scope = scope_of_rows();
  EXPECT_FALSE(at::equal(other(x_), linear_(x_)));
}

/// Three adapters of one operand with the same A and B.
class LoraDropoutOfAGroup : public testing::Test {
 protected:
  LoraDropoutOfAGroup() {
    randomise(store_);
    for (const char* name : {"q", "k", "v"}) {
      const std::string path = std::string("at.") + name;
      tensor_of(store_, path + ".weight").detach().zero_();
      tensor_of(store_, path + ".lora_A.weight").detach().copy_(tensor_of(store_, "at.q.lora_A.weight").detach());
      tensor_of(store_, path + ".lora_B.weight").detach().copy_(tensor_of(store_, "at.q.lora_B.weight").detach());
    }
  }

  at::Tensor run(const at::Tensor& x, std::vector<DropoutUnit> units) const {
    const DropoutScope scope(std::move(units));
    return linears_(x);
  }

  ParameterStore store_ = dropout_store();
  const Linears linears_{ParameterScope(store_, Component::kLanguageModel, "at"),
                         {"q", "k", "v"},
                         kIn,
                         {kOut, kOut, kOut},
                         /*bias=*/false};
  const at::Tensor x_ = at::randn({kRows, kIn}, dropout_type());
};

TEST_F(LoraDropoutOfAGroup, DiffersFromAdapterToAdapter) {
  const auto of_each = run(x_, {{.seed = 5, .share = 1}, {.seed = 6, .share = 3}}).chunk(3, 1);
  EXPECT_GT(relative_difference(of_each[0], of_each[1]), 0.1);
  EXPECT_GT(relative_difference(of_each[0], of_each[2]), 0.1);
  EXPECT_GT(relative_difference(of_each[1], of_each[2]), 0.1);
}

TEST_F(LoraDropoutOfAGroup, DoesNotDependOnTheCut) {
  const at::Tensor together = run(x_, {{.seed = 5, .share = 1}, {.seed = 6, .share = 3}});
  const at::Tensor first = run(x_.narrow(0, 0, kRows / 4), {{.seed = 5}});
  const at::Tensor rest = run(x_.narrow(0, kRows / 4, kRows * 3 / 4), {{.seed = 6}});
  EXPECT_LT(relative_difference(at::cat({first, rest}), together), rounding());
}

TEST_F(LoraDropoutOfAGroup, GradientsAreThoseOfWhatIsDropped) {
  const at::Tensor x = x_.clone().set_requires_grad(true);
  const std::vector<DropoutUnit> units{{.seed = 5, .share = 1}, {.seed = 6, .share = 3}};
  const DropoutScope scope(units);
  std::vector<at::Tensor> of{x}, parts, left;
  ReadersDropout(x, 3, kDropped, stream_seed(0, "at.q"))
      .drop(at::ones_like(x), [&](int64_t /*reader*/, const at::Tensor& of_ones) { left.push_back(of_ones); });
  auto of_reader = left.begin();
  for (const std::string path : {"at.q", "at.k", "at.v"}) {
    const at::Tensor a = tensor_of(store_, path + ".lora_A.weight"), b = tensor_of(store_, path + ".lora_B.weight");
    parts.push_back(at::mm(at::mm(x * *of_reader++, a.t()), b.t()));
    of.push_back(a);
    of.push_back(b);
  }
  const at::Tensor wanted = at::cat(parts, 1), y = linears_(x);
  EXPECT_LT(relative_difference(y, wanted), rounding());
  const at::Tensor direction = at::randn_like(y);
  const auto found = torch::autograd::grad({y}, of, {direction});
  const auto expected = torch::autograd::grad({wanted}, of, {direction});
  for (size_t i = 0; i < of.size(); ++i) EXPECT_LT(relative_difference(found[i], expected[i]), 10 * rounding()) << i;
}

TEST_F(LoraDropout, IsRefusedWhereNobodySaysWhatTheRowsAre) {
  EXPECT_THROW(linear_(x_), InternalError);
}

TEST_F(LoraDropout, IsOffWhereNoGradientIsWanted) {
  const at::AutoGradMode no_gradients(false);
  const at::Tensor whole = at::mm(at::mm(x_, a_.t()), b_.t());
  EXPECT_LT(relative_difference(run(), whole), rounding());
  const at::Tensor recomputed = recompute([this](const at::Tensor& x) { return linear_(x); }, x_, {a_, b_});
  EXPECT_LT(relative_difference(recomputed, whole), rounding());
}

TEST_F(LoraDropout, IsTheSameWhenABlockRunsAgain) {
  const at::Tensor plain = run();
  const auto wanted = torch::autograd::grad({plain.pow(2).sum()}, {a_, b_});
  at::Tensor recomputed;
  {
    const DropoutScope scope = scope_of_rows();
    recomputed = recompute([this](const at::Tensor& input) { return linear_(input); }, x_, {a_, b_});
  }
  EXPECT_TRUE(at::equal(recomputed, plain));
  const auto found = torch::autograd::grad({recomputed.pow(2).sum()}, {a_, b_});
  EXPECT_TRUE(at::equal(found[0], wanted[0]));
  EXPECT_TRUE(at::equal(found[1], wanted[1]));
}

TEST(Dora, KeepsWhatDropoutTakesFromTheAdapter) {
  ParameterStore store = dropout_store(/*use_dora=*/true);
  const Linear linear(ParameterScope(store, Component::kLanguageModel, "up"), kIn, kOut, /*bias=*/true);
  randomise(store);
  const at::Tensor x = at::randn({kRows, kIn}, dropout_type());
  const at::Tensor dropped = drop(x);
  const DropoutScope scope = scope_of_rows();
  const at::Tensor y = linear(x);

  // As in PEFT: base + (f − 1) · W unit_dropout(x) + f · scale · B A unit_dropout(x).
  const at::Tensor weight = tensor_of(store, "up.weight");
  const at::Tensor product = at::mm(tensor_of(store, "up.lora_B.weight"), tensor_of(store, "up.lora_A.weight"));
  const at::Tensor factor = tensor_of(store, "up.lora_magnitude_vector") / (weight + product).norm(2, {1});
  const at::Tensor wanted = at::linear(x, weight, tensor_of(store, "up.bias")) +
                            (factor - 1) * at::linear(dropped, weight) + factor * at::linear(dropped, product);
  EXPECT_LT(relative_difference(y, wanted), rounding());
}

TEST(FrozenLinear, KeepsNoInput) {
  const at::Tensor x = at::randn({kRows, kIn}).set_requires_grad(true).neg();  // no leaf, which its gradient holds
  const auto holders = [&x] { return x.use_count() + x.storage().use_count(); };
  const auto before = holders();
  const at::Tensor frozen = linear(x, at::randn({kOut, kIn}), at::randn({kOut}));
  EXPECT_EQ(holders(), before);
  const at::Tensor trained = linear(x, at::randn({kOut, kIn}).set_requires_grad(true), at::randn({kOut}));
  EXPECT_GT(holders(), before);
}

}  // namespace
}  // namespace vlmtrain::nn

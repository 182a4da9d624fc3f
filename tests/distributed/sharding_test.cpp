#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "distributed/ranks_of_threads.h"
#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "vlmtrain/distributed/consensus.h"
#include "vlmtrain/engine/training.h"

namespace vlmtrain::distributed {
namespace {

using engine::AdamWSettings;
using engine::Shard;
using engine::Training;
using Weights = std::map<std::string, at::Tensor>;
using State = std::map<std::string, at::Tensor>;

constexpr engine::LearningRates kRates{1e-3, 1e-3, 1e-3};

struct How {
  std::string name;
  AdamWSettings settings = {};
  at::ScalarType dtype = at::kFloat;
  double tolerance = 1e-5;
};

struct Trained {
  std::vector<double> losses, norms;
  Weights weights;
  State state;  // of all ranks together
};

/// What all ranks have come to, which has to be the same; of states each has its own pieces.
void join(Trained& all, const Trained& own) {
  if (all.weights.empty()) {
    all = own;
    return;
  }
  EXPECT_EQ(own.losses, all.losses);
  EXPECT_EQ(own.norms, all.norms);
  for (const auto& [name, weight] : own.weights) EXPECT_TRUE(at::equal(weight, all.weights.at(name))) << name;
  for (const auto& [name, tensor] : own.state) all.state.emplace(name, tensor);
}

/// `steps` steps of eight samples, of which each rank has every world_size-th; from `before`, if there is anything.
Trained train(int64_t ranks, bool shares, const How& how, int64_t steps, const Trained& before = {}) {
  Trained all;
  std::mutex mutex;
  as_ranks(ranks, [&](const Launch& launch) {
    Ranks meeting(launch);
    const RankConsensus consensus(meeting.collectives());
    const auto model = parity::Case("mixed_batch").load_model(how.dtype);
    for (const auto& parameter : model->parameters().all()) {
      if (!before.weights.empty()) parameter.tensor.detach().copy_(before.weights.at(parameter.name));
    }
    const Shard shard = shares ? Shard{.rank = launch.rank, .count = ranks} : Shard{};
    Training training(*model, how.settings, 1, shard);
    if (!before.state.empty()) training.optimizer.load_state(before.state, "the test");
    training.sums.reduce_with(engine::reduce_over(consensus, shard));
    std::vector<data::Sample> samples;
    const auto of_all = engine::batch_of_eight();
    for (size_t i = static_cast<size_t>(launch.rank); i < of_all.size(); i += static_cast<size_t>(ranks)) {
      samples.push_back(of_all[i]);
    }
    const engine::CrossEntropy objective(engine::TaskSettings{});
    Trained own;
    for (int64_t i = 0; i < steps; ++i) {
      const engine::StepInput input{
          .objective = objective, .samples = samples, .normalizers = consensus.sum(objective.normalizers(samples))};
      engine::Step step(training, input, consensus);
      step.accumulate(engine::SmallStep{.micro_batch_size = 1}.layout_of(*model, samples));
      step.prepare();
      const auto result = step.apply(kRates);
      own.losses.push_back(result.loss.item<double>());
      own.norms.push_back(result.grad_norm.item<double>());
    }
    if (training.weights) training.weights->finish();
    for (const auto& parameter : model->parameters().all()) own.weights[parameter.name] = parameter.tensor.detach();
    for (const auto& [name, tensor] : training.optimizer.state()) own.state[name] = tensor.clone();
    const std::lock_guard lock(mutex);
    join(all, own);
  });
  return all;
}

void expect_same(const Trained& found, const Trained& wanted, double tolerance) {
  ASSERT_EQ(found.losses.size(), wanted.losses.size());
  for (size_t i = 0; i < wanted.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i] / wanted.losses[i], 1, tolerance) << "step " << i;
    EXPECT_NEAR(found.norms[i] / wanted.norms[i], 1, tolerance) << "step " << i;
  }
  for (const auto& [name, weight] : wanted.weights) {
    if (parity::has_zero_true_gradient(name)) continue;
    EXPECT_LT(parity::relative_difference(found.weights.at(name).to(at::kDouble), weight.to(at::kDouble)), tolerance)
        << name;
  }
}

class SharedStates : public testing::TestWithParam<How> {};

/// So large an epsilon makes the update proportional to the gradient, whose rounding it does not magnify.
constexpr AdamWSettings kSettings{.epsilon = 1e-2, .weight_decay = 0.1, .max_grad_norm = 0.5};

TEST_P(SharedStates, TrainAsWholeOnesDo) {
  const Trained alone = train(1, false, GetParam(), 3);
  for (const int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const Trained whole = train(ranks, false, GetParam(), 3), shared = train(ranks, true, GetParam(), 3);
    expect_same(shared, whole, GetParam().tolerance);
    expect_same(shared, alone, GetParam().tolerance);
  }
}

TEST_P(SharedStates, GoOnInAnotherNumberOfRanks) {
  const Trained undisturbed = train(2, true, GetParam(), 4), begun = train(3, true, GetParam(), 2);
  for (const int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    Trained on = train(ranks, /*shares=*/ranks > 1, GetParam(), 2, begun);
    on.losses.insert(on.losses.begin(), begun.losses.begin(), begun.losses.end());
    on.norms.insert(on.norms.begin(), begun.norms.begin(), begun.norms.end());
    expect_same(on, undisturbed, GetParam().tolerance);
  }
  const Trained again = train(3, true, GetParam(), 2);
  EXPECT_EQ(again.losses, begun.losses) << "to the bit";
  for (const auto& [name, tensor] : begun.state) EXPECT_TRUE(at::equal(tensor, again.state.at(name))) << name;
}

AdamWSettings with_states(engine::OptimizerStates states) {
  AdamWSettings settings = kSettings;
  settings.states = states;
  return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Of, SharedStates,
    testing::Values(
        How{.name = "Fp32", .settings = kSettings},
        // Products of 16 bits differ by the shapes in which they are made.
        How{.name = "Bf16", .settings = kSettings, .dtype = at::kBFloat16, .tolerance = 3e-2},
        How{.name = "EightBits", .settings = with_states(engine::OptimizerStates::k8Bit), .tolerance = 1e-4}),
    [](const auto& instance) { return instance.param.name; });

/// Two ranks add up in one order only, and without clipping nothing else depends on how sums are stored.
TEST(SharedStatesTest, OfTwoRanksAreThoseOfWholeOnesToTheBit) {
  How how{.name = "unclipped", .settings = kSettings};
  how.settings.max_grad_norm = 0;
  const Trained whole = train(2, false, how, 3), shared = train(2, true, how, 3);
  EXPECT_EQ(shared.losses, whole.losses);
  for (const auto& [name, weight] : whole.weights) EXPECT_TRUE(at::equal(shared.weights.at(name), weight)) << name;
  const engine::SavedPieces pieces(shared.state);
  for (const auto& [name, tensor] : whole.state) {
    const auto joined = pieces.find(name, 0, tensor.numel(), tensor.numel(), tensor.scalar_type());
    ASSERT_TRUE(joined) << name;
    EXPECT_TRUE(at::equal(*joined, tensor.view(-1))) << name;
  }
}

TEST(SharedStatesTest, BytesAndCallsAreThoseOfTheWeights) {
  as_ranks(2, [](const Launch& launch) {
    Ranks ranks(launch);
    const RankConsensus consensus(ranks.collectives());
    const at::Tensor values = at::arange(8, at::kFloat) * static_cast<double>(launch.rank + 1);
    consensus.add_up_parts(values);
    consensus.finish();
    const at::Tensor summed = at::arange(8, at::kFloat) * 3;
    EXPECT_TRUE(at::equal(values.narrow(0, 4 * launch.rank, 4), summed.narrow(0, 4 * launch.rank, 4)));
    consensus.gather_parts(values);
    consensus.finish_gather();
    EXPECT_TRUE(at::equal(values, summed));
    EXPECT_EQ(ranks.collectives().summed().calls, 0);
    EXPECT_EQ(ranks.collectives().summed_in_parts().bytes, 32);
    EXPECT_EQ(ranks.collectives().gathered().bytes, 32);
    EXPECT_EQ(ranks.collectives().gathered().calls, 1);
  });
}

}  // namespace
}  // namespace vlmtrain::distributed

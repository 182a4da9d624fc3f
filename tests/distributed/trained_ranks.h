#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/ranks_of_threads.h"
#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "vlmtrain/distributed/consensus.h"
#include "vlmtrain/engine/training.h"
#include "vlmtrain/memory/fault_injection.h"

namespace vlmtrain::distributed {

using Tensors = std::map<std::string, at::Tensor>;

constexpr engine::LearningRates kTestRates{1e-3, 1e-3, 1e-3};

/// So large an epsilon makes the update proportional to the gradient, whose rounding it does not magnify.
constexpr engine::AdamWSettings kTestSettings{.epsilon = 1e-2, .weight_decay = 0.1, .max_grad_norm = 0.5};

/// What a test trains.
struct How {
  std::string name;
  engine::AdamWSettings settings = kTestSettings;
  at::ScalarType dtype = at::kFloat;
  double tolerance = 1e-5;
  std::optional<nn::LoraSettings> lora = std::nullopt;
  nn::Quantization quantization = nn::Quantization::kNone;
  models::FrozenParts frozen = {};
  models::RecomputeBlocks recompute = {};
  int64_t vision_tiles_per_pass = 0;
  std::string model = "mixed_batch";
  /// From the second step on memory runs out on one rank, at another place in each, and the step is done again.
  bool runs_out_of_memory = false;
};

/// And what of it each rank has a part of: of `group` ranks; 0: of all.
struct Parts {
  engine::Sharding sharding = engine::Sharding::kNone;
  int64_t group = 0;
};

constexpr Parts kWhole{}, kSharedStates{.sharding = engine::Sharding::kOptimizer},
    kSharedWeights{.sharding = engine::Sharding::kFull};

struct Trained {
  std::vector<double> losses, norms;
  Tensors weights;
  Tensors state;  // of all ranks together
  Traffic summed, summed_in_parts, gathered;
  int64_t done_again = 0;
};

/// What all ranks have come to, which has to be the same; of states each has its own pieces.
inline void join(Trained& all, const Trained& own) {
  if (all.weights.empty()) {
    all = own;
    return;
  }
  EXPECT_EQ(own.losses, all.losses);
  EXPECT_EQ(own.norms, all.norms);
  for (const auto& [name, weight] : own.weights) EXPECT_TRUE(at::equal(weight, all.weights.at(name))) << name;
  for (const auto& [name, tensor] : own.state) all.state.emplace(name, tensor);
}

/// As in all ranks: what is in a checkpoint, second factors of adapters that are not zero, and of what is trained what
/// `before` has.
inline void set_weights(models::VisionLanguageModel& model, const std::string& name, const Tensors& before) {
  models::load_weights(model, parity::Case(name).checkpoint());
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.tensor.requires_grad()) continue;
    if (const auto found = before.find(parameter.name); found != before.end()) {
      parameter.set_values(found->second);
    } else if (parameter.is_adapter) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(parameter.name));
      parameter.tensor.detach().normal_(0, 0.1, generator);
    }
  }
}

/// The whole weights that are trained, of a model of which each rank may hold a part. Ranks call it one by one; the
/// others follow.
inline Tensors trained_weights(const nn::ParameterStore& store) {
  Tensors weights;
  for (const auto& parameter : store.all()) {
    if (parameter.tensor.requires_grad()) weights[parameter.name] = store.values_of(parameter).clone();
  }
  return weights;
}

/// `steps` steps of eight samples (of other models' parity cases: of these), of which each rank has every `ranks`-th;
/// from `before`, if there is anything.
inline Trained train(int64_t ranks, const Parts& parts, const How& how, int64_t steps, const Trained& before = {}) {
  Trained all;
  std::mutex mutex;
  as_ranks(ranks, [&](const Launch& launch) {
    Ranks meeting(launch);
    const int64_t group = parts.group > 0 ? parts.group : ranks;
    if (group < ranks) meeting.share_in_groups_of(group);
    const RankConsensus consensus(meeting.collectives());
    const nn::Shard shard = parts.sharding == engine::Sharding::kNone
                                ? nn::Shard{}
                                : nn::Shard{.rank = launch.rank % group, .count = group};
    const auto model = models::build_model(parity::Case(how.model).checkpoint(), at::kCPU, how.dtype, how.lora,
                                           how.quantization, shards_blocks(parts.sharding) ? shard : nn::Shard{});
    models::freeze(*model, how.frozen);
    model->set_recompute(how.recompute);
    model->set_vision_tiles_per_pass(how.vision_tiles_per_pass);
    set_weights(*model, how.model, before.weights);
    engine::Training training(*model, how.settings, 1, shard);
    if (!before.state.empty()) training.optimizer.load_state(before.state, "the test");
    training.connect(consensus);
    std::vector<data::Sample> samples;
    const auto of_all = how.model == "mixed_batch" ? engine::batch_of_eight() : parity::Case(how.model).samples();
    for (size_t i = static_cast<size_t>(launch.rank); i < of_all.size(); i += static_cast<size_t>(ranks)) {
      samples.push_back(of_all[i]);
    }
    const engine::CrossEntropy objective(engine::TaskSettings{});
    Trained own;
    memory::FaultInjection faults;
    int64_t allocations = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const engine::StepInput input{
          .objective = objective, .samples = samples, .normalizers = consensus.sum(objective.normalizers(samples))};
      engine::Step step(training, input, consensus);
      const auto layout = engine::SmallStep{.micro_batch_size = 1}.layout_of(*model, samples);
      const bool fails = how.runs_out_of_memory && i > 0 && launch.rank == i % ranks;
      faults.arm({.failing_allocation = fails ? allocations * i / steps : -1});
      auto verdict = engine::Verdict::kFine;
      try {
        step.accumulate(layout);
      } catch (const engine::StepOutOfMemory&) {
        verdict = engine::Verdict::kRedoSmaller;
      }
      allocations = std::max(allocations, faults.allocations());
      faults.disarm();
      if (consensus.worst(verdict) != engine::Verdict::kFine) {
        ++own.done_again;
        training.sums.drop();
        step.accumulate(layout);
      }
      step.prepare();
      const auto result = step.apply(kTestRates);
      own.losses.push_back(result.loss.item<double>());
      own.norms.push_back(result.grad_norm.item<double>());
    }
    if (training.weights) training.weights->finish();
    own.summed = meeting.collectives().summed();
    own.summed_in_parts = meeting.collectives().summed_in_parts();
    own.gathered = meeting.collectives().gathered();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      if (rank == launch.rank) own.weights = trained_weights(model->parameters());
      model->parameters().follow();
    }
    for (const auto& [name, tensor] : training.optimizer.state()) own.state[name] = tensor.clone();
    const std::lock_guard lock(mutex);
    join(all, own);
  });
  return all;
}

inline void expect_same(const Trained& found, const Trained& wanted, double tolerance) {
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

}  // namespace vlmtrain::distributed

#include "planner/job_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planner/arguments.h"
#include "vlmtrain/models/mask_families.h"

namespace vlmtrain::planner {

namespace {

/// LoRA where the job has none. False: it has, or trains nothing that gets adapters.
bool train_adapters(const RemedyRehearsal::Asked& asked, JobChange& change) {
  if (change.job.lora || !takes_adapters(change.job.frozen)) return false;
  change.job.lora = adapters(asked.job, asked.words.adapter_rank);
  change.arguments = words_of(asked.words.adapters, asked.words.adapter_rank);
  change.meaning = fmt::format("trains LoRA adapters of rank {} instead of all weights", asked.words.adapter_rank);
  return true;
}

bool hold_in(nn::Quantization quantization, JobChange& change) {
  if (!change.job.lora || change.job.quantization != nn::Quantization::kNone) return false;
  change.job.quantization = quantization;
  change.arguments.push_back("model.quantization=" + nn::name_of(quantization));
  change.meaning += fmt::format("{}holds the frozen Linears in {} bits", change.meaning.empty() ? "" : " and ",
                                quantization == nn::Quantization::kNf4 ? 4 : 8);
  return true;
}

bool compute_in_16_bits(const RemedyRehearsal::Asked& asked, JobChange& change) {
  if (change.job.precision != engine::Precision::kFp32) return false;
  change.job =
      with_precision(std::move(change.job), asked.has_bf16 ? engine::Precision::kBf16 : engine::Precision::kFp16);
  change.arguments.push_back("training.precision=" + engine::name_of(change.job.precision));
  change.meaning = "computes in 16 bits";
  return true;
}

bool share(engine::Sharding sharding, const char* meaning, JobChange& change) {
  Job& job = change.job;
  const auto possible = possible_shardings(job);
  if (job.sharding >= sharding || std::ranges::find(possible, sharding) == possible.end()) return false;
  job.sharding = sharding;
  change.arguments.push_back(fmt::format("distributed.sharding={}", engine::name_of(sharding)));
  change.meaning = meaning;
  return true;
}

bool share_optimizer_states(JobChange& change) {
  return share(engine::Sharding::kOptimizer, "has each rank hold a part of the optimizer's state", change);
}

bool share_blocks(JobChange& change) {
  return share(engine::Sharding::kFull, "has each rank hold a part of weights, gradients and the optimizer's state",
               change);
}

bool shrink_optimizer_states(JobChange& change) {
  engine::OptimizerStates& states = change.job.optimizer.states;
  if (states == engine::OptimizerStates::k8Bit) return false;
  states = engine::OptimizerStates::k8Bit;
  change.arguments.push_back("training.optimizer_states=" + engine::name_of(states));
  change.meaning = "holds the optimizer's moments in 8 bits";
  return true;
}

bool freeze_vision_tower(JobChange& change) {
  auto& frozen = change.job.frozen;
  if (frozen.vision_tower || frozen.language_model) return false;
  frozen.vision_tower = true;
  if (change.job.lora && change.job.lora->adapter.empty()) {
    change.job.lora->left_out.push_back(nn::Component::kVisionTower);
  }
  change.arguments.emplace_back("model.freeze_vision_tower=true");
  change.meaning = "leaves the vision tower as it is";
  return true;
}

/// Those of `list` that change something.
template <class... Apply>
std::vector<JobChange> changes(const RemedyRehearsal::Asked& asked, const Apply&... apply) {
  std::vector<JobChange> list;
  const auto add = [&](const auto& one) {
    JobChange change{.arguments = {}, .meaning = {}, .job = asked.job};
    if (one(change)) list.push_back(std::move(change));
  };
  (add(apply), ...);
  return list;
}

}  // namespace

bool takes_adapters(const models::FrozenParts& frozen) {
  return !(frozen.vision_tower && frozen.projector && frozen.language_model);
}

nn::LoraSettings adapters(const Job& job, int64_t rank) {
  const models::FrozenParts& frozen = job.frozen;
  nn::LoraSettings settings{.rank = rank, .modules_to_save = models::trained_beside_adapters(job.model, frozen)};
  if (frozen.vision_tower) settings.left_out.push_back(nn::Component::kVisionTower);
  if (frozen.projector) settings.left_out.push_back(nn::Component::kProjector);
  if (frozen.language_model) settings.left_out.push_back(nn::Component::kLanguageModel);
  if (frozen.mask_encoder) settings.left_out.push_back(nn::Component::kMaskEncoder);
  return settings;
}

std::vector<JobChange> numeric_changes(const RemedyRehearsal::Asked& asked) {
  return changes(
      asked, share_optimizer_states, share_blocks, [&](JobChange& change) { return compute_in_16_bits(asked, change); },
      shrink_optimizer_states, [](JobChange& change) { return hold_in(nn::Quantization::kInt8, change); },
      [](JobChange& change) { return hold_in(nn::Quantization::kNf4, change); });
}

std::vector<JobChange> training_changes(const RemedyRehearsal::Asked& asked) {
  return changes(asked, freeze_vision_tower, [&](JobChange& change) { return train_adapters(asked, change); });
}

std::vector<JobChange> smallest_job(const RemedyRehearsal::Asked& asked) {
  return changes(asked, [&](JobChange& change) {
    const bool adapters = train_adapters(asked, change);
    const bool quantized = hold_in(nn::Quantization::kNf4, change);
    return adapters || quantized;
  });
}

}  // namespace vlmtrain::planner

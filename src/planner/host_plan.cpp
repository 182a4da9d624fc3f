#include "vlmtrain/planner/host_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "planner/host_rehearsal.h"
#include "planner/option_search.h"

namespace vlmtrain::planner {

namespace {

// Measured: docs/memory.md, "On the CPU".
/// Primitives of oneDNN and MKL's buffers, stacks, small objects of the autograd graph.
constexpr int64_t kLibraryBytes = 450'000'000;
/// What malloc cannot use again of the memory that tensors had, as a share of their peak.
constexpr double kFragmentedShare = 0.02;

constexpr int64_t kSmallLossChunk = 128;

/// The first samples of a batch, the last standing for those that it lacks.
std::vector<SampleGroup> micro_batch_of(const SampleBatch& batch, int64_t size) {
  std::vector<SampleGroup> groups;
  for (int64_t i = 0; i < size; ++i) {
    add_sample(groups, batch.shapes[static_cast<size_t>(std::min(i, std::ssize(batch.shapes) - 1))]);
  }
  return groups;
}

class HostSearch {
 public:
  explicit HostSearch(const HostPlanRequest& request) : request_(request), job_(request.job), fixed_(request.fixed) {}

  HostPlan make() {
    const auto start = std::chrono::steady_clock::now();
    HostPlan plan;
    plan.model = request_.model;
    plan.job = request_.job;
    plan.mode = request_.mode;
    plan.limit = request_.limit;
    plan.workload = request_.workload;
    learn_blocks();
    plan.fits = find();
    plan.choices = choices_;
    if (!plan.fits) plan.remedies = remedies();
    describe(plan);
    effort_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    plan.effort = effort_;
    return plan;
  }

 private:
  /// Sets choices_ to the first that fits; where none does, to what needs least.
  bool find() {
    if (standing_bytes() <= request_.limit.tensor_bytes) {
      return find_without_recomputing() || find_recomputing() || find_with_smaller_passes();
    }
    choices_ = recomputing(all_blocks_.vision + all_blocks_.language);
    return false;
  }

  int64_t standing_bytes() {
    if (!rehearsal_) rehearsal_.emplace(job_);
    return rehearsal_->standing_bytes();
  }

  bool find_without_recomputing() {
    if (!fixed_.recompute.is_auto()) return find_size(fixed_.recompute.blocks_of(all_blocks_));
    return find_size({});
  }

  /// The largest micro-batch with so many blocks recomputed.
  bool find_size(const models::RecomputeBlocks& recompute) {
    const auto sizes = micro_batch_sizes();
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      if (fits(choices_at(*size, recompute))) return true;
    }
    return false;
  }

  /// The smallest micro-batch, as few blocks as fit; those of the tower first, whose activations are most of it.
  bool find_recomputing() {
    if (!fixed_.recompute.is_auto()) return false;
    const int64_t all = all_blocks_.vision + all_blocks_.language;
    if (!fits(recomputing(all))) return false;
    // The next to try is where a straight line between the two says that it begins to fit.
    int64_t fitting = all;
    int64_t too_few = 0;
    while (fitting - too_few > 1) {
      const auto least = static_cast<double>(peak_bytes(recomputing(fitting)));
      const auto most = static_cast<double>(peak_bytes(recomputing(too_few)));
      const double share = (most - static_cast<double>(request_.limit.tensor_bytes)) / std::max(1.0, most - least);
      const auto guess = too_few + std::llround(std::ceil(share * static_cast<double>(fitting - too_few)));
      const int64_t next = std::clamp<int64_t>(guess, too_few + 1, fitting - 1);
      (fits(recomputing(next)) ? fitting : too_few) = next;
    }
    choices_ = recomputing(fitting);
    return true;
  }

  Choices recomputing(int64_t blocks) const {
    const bool has_tiles = tiles() > 0;
    const int64_t vision = has_tiles ? std::min(blocks, all_blocks_.vision) : 0;
    return choices_at(micro_batch_sizes().front(), {vision, std::min(blocks - vision, all_blocks_.language)});
  }

  bool find_with_smaller_passes() {
    Choices smallest = recomputing(all_blocks_.vision + all_blocks_.language);
    if (!fixed_.recompute.is_auto()) smallest.recompute = fixed_.recompute.blocks_of(all_blocks_);
    if (!fixed_.loss_chunk_rows) smallest.loss_chunk_rows = kSmallLossChunk;
    if (fits(smallest)) return true;
    if (fixed_.vision_tiles_per_pass) return false;
    for (int64_t left = tiles() * smallest.micro_batch_size; left > 1;) {
      left = (left + 1) / 2;
      smallest.vision_tiles_per_pass = left;
      if (fits(smallest)) return true;
    }
    return false;
  }

  std::vector<int64_t> micro_batch_sizes() const {
    if (fixed_.micro_batch_size) return {*fixed_.micro_batch_size};
    auto sizes = divisors(request_.workload.samples_per_rank());
    std::erase_if(sizes, [this](int64_t size) { return size > request_.largest_micro_batch; });
    return sizes;
  }

  Choices choices_at(int64_t size, const models::RecomputeBlocks& recompute) const {
    return {.micro_batch_size = size,
            .recompute = recompute,
            .vision_tiles_per_pass = fixed_.vision_tiles_per_pass.value_or(0),
            .loss_chunk_rows = fixed_.loss_chunk_rows.value_or(Choices{}.loss_chunk_rows),
            .expandable_segments = fixed_.expandable_segments};
  }

  int64_t tiles() const {
    int64_t most = 0;
    for (const auto& batch : request_.workload.candidates) most = std::max(most, batch.shapes.front().tiles);
    return most;
  }

  /// The choice is remembered.
  bool fits(const Choices& choices) {
    choices_ = choices;
    return peak_bytes(choices) <= request_.limit.tensor_bytes;
  }

  int64_t peak_bytes(const Choices& choices) { return worst_of(choices).outcome.peaks().allocated_bytes; }

  /// With the batch that needs most.
  struct Rehearsed {
    Choices choices;
    Outcome outcome;
    size_t batch = 0;
  };

  const Rehearsed& worst_of(const Choices& choices) {
    const auto known = std::ranges::find(rehearsed_, choices, &Rehearsed::choices);
    if (known != rehearsed_.end()) return *known;
    if (!rehearsal_) rehearsal_.emplace(job_);
    Rehearsed worst{.choices = choices, .outcome = {}};
    for (size_t i = 0; i < request_.workload.candidates.size(); ++i) {
      const SampleBatch& batch = request_.workload.candidates[i];
      Outcome outcome = rehearsal_->step(choices, micro_batch_of(batch, choices.micro_batch_size));
      ++effort_.rehearsals;
      effort_.rehearsal_seconds += outcome.seconds;
      const bool is_worst = i == 0 || outcome.peaks().allocated_bytes > worst.outcome.peaks().allocated_bytes;
      if (is_worst) worst = {choices, std::move(outcome), i};
    }
    rehearsed_.push_back(std::move(worst));
    return rehearsed_.back();
  }

  /// Another job is rehearsed from now on.
  void set_job(Job job) {
    job_ = std::move(job);
    rehearsal_.reset();
    rehearsed_.clear();
  }

  void learn_blocks() {
    const auto& detail = *worst_of(choices_at(1, {})).outcome.detail;
    all_blocks_ = {detail.vision_blocks, detail.language_blocks};
  }

  void describe(HostPlan& plan) {
    const Rehearsed& rehearsed = worst_of(plan.choices);
    plan.peak_bytes = rehearsed.outcome.peaks().allocated_bytes;
    plan.worst = request_.workload.candidates[rehearsed.batch];
    rehearsal_.reset();
    plan.detail = *HostRehearsal(job_, HostRehearsal::Detail::kPeakByComponent)
                       .step(plan.choices, micro_batch_of(plan.worst, plan.choices.micro_batch_size))
                       .detail;
  }

  /// What a person could set so that it fits: the least change first.
  std::vector<std::string> remedies() {
    const Choices least = choices_;
    std::vector<std::string> found;
    const auto tries = [&](const std::string& setting, const std::function<void(Job&)>& change) {
      Job job = request_.job;
      change(job);
      set_job(std::move(job));
      if (find()) found.push_back(setting);
      fixed_ = request_.fixed;
    };
    const bool has_fixed = fixed_.micro_batch_size || !fixed_.recompute.is_auto() || fixed_.vision_tiles_per_pass ||
                           fixed_.loss_chunk_rows;
    if (has_fixed) {
      tries(
          "training.micro_batch_size=auto memory.recompute=auto memory.vision_tiles_per_pass=auto "
          "memory.loss_chunk_rows=auto",
          [this](Job&) { fixed_ = {}; });
    }
    const Job& job = request_.job;
    if (job.optimizer_states != engine::OptimizerStates::k8Bit) {
      tries("training.optimizer_states=8bit",
            [](Job& changed) { changed.optimizer_states = engine::OptimizerStates::k8Bit; });
    }
    if (!job.lora) {
      if (!job.frozen.vision_tower) {
        tries("model.freeze_vision_tower=true", [](Job& changed) { changed.frozen.vision_tower = true; });
      }
      tries("lora.rank=16", [](Job& changed) { changed.lora = nn::LoraSettings{.rank = 16}; });
    }
    choices_ = least;
    set_job(request_.job);
    return found;
  }

  const HostPlanRequest& request_;
  Job job_;             // request_'s, or a remedy's
  FixedChoices fixed_;  // the same
  Choices choices_;
  models::RecomputeBlocks all_blocks_;
  std::optional<HostRehearsal> rehearsal_;  // of job_
  std::vector<Rehearsed> rehearsed_;        // the same
  PlanningEffort effort_;
};

}  // namespace

int64_t HostLimit::fragmented_bytes(int64_t tensor_bytes) {
  return std::llround(static_cast<double>(tensor_bytes) * kFragmentedShare);
}

HostLimit host_limit(memory::HostRoom room, std::optional<double> limit_gigabytes, Mode mode, int64_t process_bytes,
                     int64_t samples_bytes) {
  constexpr double kBytesPerGigabyte = 1e9;
  if (limit_gigabytes && *limit_gigabytes * kBytesPerGigabyte < static_cast<double>(room.bytes)) {
    room = {.bytes = static_cast<int64_t>(*limit_gigabytes * kBytesPerGigabyte), .bound = "memory.limit_gb"};
  }
  HostLimit limit{.room = std::move(room), .margin_percent = margin_percent(mode)};
  limit.margin_bytes = std::llround(static_cast<double>(limit.room.bytes) * limit.margin_percent / 100);
  limit.process_bytes = process_bytes;
  limit.samples_bytes = samples_bytes;
  limit.libraries_bytes = kLibraryBytes;
  const int64_t left = limit.room.bytes - limit.margin_bytes - limit.total_bytes(0);
  limit.tensor_bytes = static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, left)) / (1 + kFragmentedShare));
  return limit;
}

HostPlan make_host_plan(const HostPlanRequest& request) {
  return HostSearch(request).make();
}

int64_t host_peak_bytes(const Job& job, const Workload& workload, const Choices& choices) {
  HostRehearsal rehearsal(job);
  int64_t most = 0;
  for (const auto& batch : workload.candidates) {
    const Outcome outcome = rehearsal.step(choices, micro_batch_of(batch, choices.micro_batch_size));
    most = std::max(most, outcome.peaks().allocated_bytes);
  }
  return most;
}

}  // namespace vlmtrain::planner

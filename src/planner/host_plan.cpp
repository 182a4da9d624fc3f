#include "vlmtrain/planner/host_plan.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "planner/host_cut.h"
#include "planner/host_search.h"
#include "planner/least_limit.h"
#include "planner/remedies.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

// Measured: docs/memory.md, "On the CPU".
/// Primitives of oneDNN and MKL's buffers, stacks, small objects of the autograd graph.
constexpr int64_t kLibraryBytes = 200'000'000;
constexpr double kBytesPerGigabyte = 1e9;

const CommandWords& words_of_a_run() {
  static const CommandWords words;
  return words;
}

/// Changes of a plan for the CPU, rehearsed on the meta device. Bytes are those of tensors.
class HostRemedyRehearsal final : public RemedyRehearsal {
 public:
  /// The arguments must outlive it.
  HostRemedyRehearsal(const HostPlanRequest& request, HostPlan& plan)
      : RemedyRehearsal({.job = request.job,
                         .workload = request.workload,
                         .fixed = request.fixed,
                         .sample_limits = request.sample_limits,
                         .words = words_of_a_run()}),
        request_(request),
        plan_(plan) {}

  std::optional<int64_t> least_bytes(const Job& job, const Workload& workload, const FixedChoices& fixed) override {
    try {
      return search(job, workload, fixed).least().peak_bytes;
    } catch (const c10::Error&) {
      return std::nullopt;  // what cannot be rehearsed is no remedy
    }
  }

  std::optional<Freed> plan_with(const FixedChoices& fixed) override {
    const auto found = search(request_.job, request_.workload, fixed).find();
    if (!found) return std::nullopt;
    return Freed{found->choices.micro_batch_size, total_bytes(found->peak_bytes)};
  }

  int64_t limit_bytes() const override { return plan_.limit.tensor_bytes; }
  int64_t total_bytes(int64_t bytes) const override { return plan_.limit.total_bytes(bytes); }

  std::vector<Suggestion> more_memory() const override {
    std::vector<Suggestion> list;
    const auto add = [&](std::string argument, std::string note, const HostLimit& limit) {
      list.push_back({.arguments = {std::move(argument)},
                      .note = std::move(note),
                      .makes_it_fit = true,
                      .total_bytes = limit.total_bytes(plan_.needed_bytes())});
    };
    const HostLimit least_margin = limit_with(Mode::kAggressive, request_.limit_gigabytes);
    if (is_enough(least_margin)) {
      add("memory.mode=aggressive",
          fmt::format("keeps {:g} % of the memory free instead of {:g} %", least_margin.margin_percent,
                      plan_.limit.margin_percent),
          least_margin);
    }
    if (!request_.limit_gigabytes) return list;
    const auto gigabytes = least_limit(*request_.limit_gigabytes, in_gigabytes(request_.room.bytes),
                                       [this](double tried) { return is_enough(limit_with(request_.mode, tried)); });
    if (gigabytes) {
      add(fmt::format("memory.limit_gb={:g}", *gigabytes), "lets the run take more of the memory that there is",
          limit_with(request_.mode, gigabytes));
    } else if (const HostLimit all = limit_with(request_.mode, std::nullopt); is_enough(all)) {
      add("memory.limit_gb=auto", "lets the run take all the memory that there is", all);
    }
    return list;
  }

 private:
  HostSearch search(const Job& job, const Workload& workload, const FixedChoices& fixed) {
    return HostSearch(job, workload,
                      {.fixed = fixed,
                       .limit_bytes = limit_bytes(),
                       .largest_micro_batch = std::min(request_.largest_micro_batch, workload.samples_per_rank())},
                      plan_.effort);
  }

  HostLimit limit_with(Mode mode, std::optional<double> gigabytes) const {
    return host_limit(request_.room, gigabytes, mode, request_.needs);
  }

  bool is_enough(const HostLimit& limit) const { return plan_.needed_bytes() <= limit.tensor_bytes; }

  const HostPlanRequest& request_;
  HostPlan& plan_;
};

std::vector<Suggestion> remedies_on_host(const HostPlanRequest& request, HostPlan& plan) {
  HostRemedyRehearsal rehearsal(request, plan);
  auto suggestions = remedies_of(rehearsal, plan.needed_bytes(), plan.detail);
  say_what_is_enough(suggestions);
  return suggestions;
}

}  // namespace

HostLimit host_limit(memory::HostRoom room, std::optional<double> limit_gigabytes, Mode mode, const HostNeeds& needs) {
  if (limit_gigabytes && *limit_gigabytes * kBytesPerGigabyte < static_cast<double>(room.bytes)) {
    room = {.bytes = static_cast<int64_t>(*limit_gigabytes * kBytesPerGigabyte), .bound = "memory.limit_gb"};
  }
  HostLimit limit{.room = std::move(room), .margin_percent = margin_percent(mode)};
  limit.margin_bytes = std::llround(static_cast<double>(limit.room.bytes) * limit.margin_percent / 100);
  limit.process_bytes = needs.process_bytes;
  // A place that has a sample of another rank counts as one of this rank's while a thread passes over it.
  const int64_t passed_over = needs.world_size > 1 ? needs.threads : 0;
  limit.ahead_bytes = std::min((2 * needs.samples_of_step + passed_over) * needs.sample_bytes,
                               bytes_for_samples_ahead(limit.room.bytes, needs.process_bytes));
  limit.samples_bytes = limit.ahead_bytes + needs.samples_of_step * needs.sample_bytes +
                        needs.threads * (needs.sample_bytes + needs.making_bytes);
  limit.libraries_bytes = kLibraryBytes;
  limit.tensor_bytes = std::max<int64_t>(0, limit.room.bytes - limit.margin_bytes - limit.total_bytes(0));
  return limit;
}

int64_t bytes_for_samples_ahead(int64_t limit_bytes, int64_t used_bytes) {
  constexpr int64_t kShare = 4;
  return std::max<int64_t>(1, (limit_bytes - used_bytes) / kShare);
}

HostPlan make_host_plan(const HostPlanRequest& asked) {
  const auto start = std::chrono::steady_clock::now();
  HostPlanRequest request = asked;
  keep_to(request.fixed, request.workload);
  request.job.world_size = request.workload.world_size;
  HostPlan plan;
  plan.model = request.model;
  plan.job = request.job;
  plan.mode = request.mode;
  plan.limit = host_limit(request.room, request.limit_gigabytes, request.mode, request.needs);
  plan.workload = request.workload;
  {
    HostSearch search(request.job, request.workload,
                      {.fixed = request.fixed,
                       .limit_bytes = plan.limit.tensor_bytes,
                       .largest_micro_batch = request.largest_micro_batch},
                      plan.effort);
    const auto found = search.find();
    const HostStep step = found ? *found : search.least();
    plan.fits = found.has_value();
    plan.choices = step.choices;
    plan.peak_bytes = step.tensor_bytes;
    plan.kept_bytes = step.peak_bytes - step.tensor_bytes;
    plan.worst = request.workload.candidates[step.batch];
    plan.detail = search.detail_of(step);
  }
  if (plan.fits && request.with_cut) plan_cut_on_host(request, plan);
  if (!plan.fits && request.with_remedies) plan.suggestions = remedies_on_host(request, plan);
  plan.effort.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

int64_t host_peak_bytes(const Job& job, const Workload& workload, const Choices& choices) {
  PlanningEffort effort;
  return HostSearch(job, workload, {}, effort).rehearse(choices).peak_bytes;
}

}  // namespace vlmtrain::planner

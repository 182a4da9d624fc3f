#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <stdexcept>

#include "train/evaluation_set.h"
#include "train/kept_choices.h"
#include "train/run_ranks.h"
#include "train/step_times.h"
#include "train/twin_link.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

/// A plan could not be made for reasons that are not the run's: the rehearsal process was killed, the stand-ins for the
/// CUDA libraries are missing.
class PlanningFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where a run's cut of its steps comes from, unless training.micro_batch_size is a number.
enum class CutOfRun {
  kFound,  ///< the planner's
  kKept,   ///< the run's checkpoint's; where that says none, equal micro-batches
};

/// The plan of a run on a GPU: made and written to plan.json before anything is allocated there, and compared with what
/// was measured at the end. Of several ranks each has its own, and the first one's is written.
class RunPlan {
 public:
  /// Throws UserError (kDoesNotFit), which says what would, if the run does not fit, and PlanningFailed. Sets up the
  /// allocator as the plan needs it.
  /// `limits` are of the samples, for what the refusal says; `kept` is what the run's checkpoint says of its cut. Where
  /// its recomputation does not fit any more, on a card with less room, the cut stays, and recomputation is chosen
  /// anew.
  RunPlan(const Config& config, at::Device device, planner::Workload workload, std::vector<planner::SampleLimit> limits,
          const planner::Job& job, const RunRanks& ranks, std::filesystem::path run_folder,
          CutOfRun cut = CutOfRun::kFound, const std::optional<KeptChoices>& kept = {});

  const planner::Choices& choices() const { return choices_; }
  planner::StepPeaks peaks() const { return plan_.peaks(); }
  /// What the run's checkpoints keep of it; nothing where its steps are cut into micro-batches of as many samples.
  const std::optional<KeptChoices>& fixed() const { return fixed_; }
  /// How drawn steps are cut; nothing where the cut was kept, or all steps are cut alike.
  const std::optional<planner::CutPlan>& cut() const { return plan_.cut; }
  /// How the run evaluates `set`, beside what its training holds: with no more than that takes at its peak where that
  /// is possible. Written to plan.json. Throws what make_plan throws.
  planner::EvaluationPlan plan_evaluation(const Config& config, const EvaluationSet& set);

  /// For a twin of the run.
  engine::Sharding sharding() const { return plan_.job.sharding; }
  TwinSettings twin_settings() const;

  /// Logs what was measured over `steps` steps beside what was planned, and adds it to plan.json. `device_used_bytes`:
  /// most of the card that was in use at a step's end, by whomever.
  void compare(const memory::DeviceMemory& measured, int64_t device_used_bytes, int64_t steps,
               const TwinSummary* twin) const;

  /// For later plans on this machine (train/past_runs.h): the context, which is what the process took of the card
  /// beside PyTorch's allocator, where no others can have taken it; the reserved peak; the time of steps. Says in the
  /// log what is in the way.
  void remember(int64_t beside_bytes, const memory::DeviceMemory& measured, const StepTimes& times) const;

 private:
  void write(const nlohmann::ordered_json& measured = nullptr) const;

  at::Device device_;
  std::filesystem::path run_folder_;
  bool writes_;                   // the first rank does
  bool may_not_fit_ = false;      // the micro-batch, with the largest samples: such steps are cut
  std::optional<PastRuns> past_;  // of runs on this machine's card
  planner::Plan plan_;
  planner::Choices choices_;
  std::optional<KeptChoices> fixed_;
  std::optional<planner::EvaluationPlan> evaluation_;
};

/// A run without a plan is to go on all the same: says why there is none, and sets up the allocator. The choices are
/// cautious_choices().
void go_on_without_plan(const Config& config, at::Device device, const PlanningFailed& failure, const RunRanks& ranks,
                        const std::filesystem::path& run_folder);

}  // namespace vlmtrain::train

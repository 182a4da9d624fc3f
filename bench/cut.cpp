// How well are steps cut by memory? For mixtures of samples, on a virtual card of exactly the card's memory:
//
// - passes a step over `steps` random steps of 16 samples, against the exact optimum under the same cost table (branch
//   and bound), and how many of the steps would do with one pass less than the table allows;
// - predicted samples a second against today's equal cut (`micro_batch_size` of the plan for the worst step) and
//   against a fixed micro-batch of four, whose steps are split where they do not fit (memory.allow_splits);
// - the steps one after another on the card: whether memory ran out, and whether the twin foresaw each step's peak.
//
//   cut [steps] [seed] > table.md

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "app/temporary_folder.h"
#include "random_jobs.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/drawn_steps.h"
#include "vlmtrain/planner/rehearsal_process.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/planner/step_cut.h"
#include "vlmtrain/planner/twin.h"
#include "vlmtrain/planner/worst_case.h"

namespace vlmtrain {

namespace {

using planner::CostTable;
using planner::SetSizes;
using Samples = std::vector<data::SampleShape>;

constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kDataSet = 2000;
constexpr int64_t kFixedMicroBatch = 4;
/// Steps of which times are predicted, which takes long.
constexpr size_t kTimedSteps = 50;

struct Mixture {
  std::string name;
  std::string model;
  std::string card;
  int64_t lora_rank = 0;
  /// Pictures of a sample.
  int64_t (*images)(Random& random) = nullptr;
};

int64_t one_or_thirty(Random& random) {
  return random.with_chance(0.1) ? 30 : 1;
}

int64_t one_to_four(Random& random) {
  return random.between(1, 4);
}

constexpr const char* kOneOrThirty = "10 % of 30 pictures, else 1";
constexpr const char* kOneToFour = "1 to 4 pictures";

const Mixture kMixtures[] = {{kOneOrThirty, "llava-1.5-7b", "h100", 16, one_or_thirty},
                             {kOneToFour, "llava-1.5-7b", "a100-40", 16, one_to_four},
                             {kOneOrThirty, "nanovlm-222m", "rtx4090", 0, one_or_thirty},
                             {kOneToFour, "smolvlm-256m", "rtx4090", 0, one_to_four},
                             {kOneToFour, "qwen2-vl-2b", "h100", 16, one_to_four}};

data::Outlines data_set(const Mixture& mixture, const std::filesystem::path& folder, Random& random) {
  data::Outlines samples;
  for (int64_t i = 0; i < kDataSet; ++i) {
    models::HypotheticalSample sample{.images = mixture.images(random),
                                      .image_width = random.one_of(std::to_array<int64_t>({512, 768, 1024})),
                                      .image_height = random.one_of(std::to_array<int64_t>({512, 768})),
                                      .text_tokens = random.between(64, 768)};
    sample.label_tokens = random.between(16, sample.text_tokens / 2);
    samples.ids.push_back(fmt::format("s{}", i));
    samples.shapes.push_back(models::shape_of(folder, sample));
  }
  return samples;
}

/// The fewest micro-batches that hold all samples, found by trying them all.
class Optimum {
 public:
  Optimum(const Samples& samples, const CostTable& table) : table_(table) {
    for (const auto& shape : samples) items_.push_back(planner::sizes_of(shape));
    std::ranges::sort(items_, std::ranges::greater{}, [&](const SetSizes& sizes) { return table.bytes(sizes); });
  }

  /// `most`: a number that is known to do.
  int64_t passes(int64_t most) {
    for (int64_t fewer = most - 1; fewer > 0; --fewer) {
      bins_.assign(static_cast<size_t>(fewer), {});
      if (!place(0)) return fewer + 1;
    }
    return 1;
  }

 private:
  bool place(size_t next) {
    if (next == items_.size()) return true;
    if (!may_hold_the_rest(next)) return false;
    for (size_t bin = 0; bin < bins_.size(); ++bin) {
      if (std::find(bins_.begin(), bins_.begin() + static_cast<std::ptrdiff_t>(bin), bins_[bin]) !=
          bins_.begin() + static_cast<std::ptrdiff_t>(bin)) {
        continue;
      }
      const SetSizes before = bins_[bin];
      const SetSizes together = before.with(items_[next]);
      if (before.samples > 0 && !table_.fits(together)) continue;
      bins_[bin] = together;
      if (place(next + 1)) return true;
      bins_[bin] = before;
    }
    return false;
  }

  /// What only adds up does not exceed what is left.
  bool may_hold_the_rest(size_t next) const {
    CostTable additive = table_;
    additive.base_bytes = 0;
    for (const auto term : {CostTable::kPaddedTokens, CostTable::kLossRows, CostTable::kPassRows}) {
      additive.bytes_per_1024[term] = 0;
    }
    int64_t room = 0;
    for (const auto& bin : bins_) {
      room += std::max<int64_t>(0, table_.limit_bytes - table_.base_bytes - additive.bytes(bin) + 1);
    }
    SetSizes rest;
    for (size_t i = next; i < items_.size(); ++i) {
      // One that fits nowhere but alone takes an empty one, whatever room there is.
      if (table_.fits(items_[i])) rest = rest.with(items_[i]);
    }
    return rest.samples == 0 || additive.bytes(rest) <= room;
  }

  const CostTable& table_;
  std::vector<SetSizes> items_;
  std::vector<SetSizes> bins_;
};

double samples_per_second(planner::RehearsalProcess& process, const planner::Choices& choices,
                          const std::vector<Samples>& steps, const std::vector<engine::Cut>& cuts) {
  planner::RehearsalRequest request{.choices = choices, .steps = {}, .with_step_seconds = true};
  for (size_t i = 0; i < std::min(kTimedSteps, steps.size()); ++i) {
    request.steps.push_back(planner::groups_of(steps[i]));
    request.cuts.push_back(cuts[i]);
  }
  const auto outcome = process.rehearse(request);
  VLMTRAIN_CHECK(outcome.step_seconds.size() == request.steps.size(), "a step failed");
  const double seconds = std::accumulate(outcome.step_seconds.begin(), outcome.step_seconds.end(), 0.0);
  return static_cast<double>(kGlobalBatch * std::ssize(request.steps)) / seconds;
}

struct Foreseen {
  std::vector<engine::Cut> cuts;
  std::vector<int64_t> reserved_bytes;
  int64_t cut = 0;
  int64_t released = 0;
  int64_t before_release = 0;  ///< steps before the cache was first emptied
};

Foreseen foresee(const planner::Plan& plan, const planner::Choices& choices, const std::vector<Samples>& steps,
                 const std::vector<engine::Cut>& cuts) {
  planner::Twin twin(plan.job, choices, planner::rehearsal_card(plan.card));
  Foreseen all;
  for (size_t i = 0; i < steps.size(); ++i) {
    engine::StepLayout layout = planner::layout_of(choices, steps[i]);
    layout.cut = cuts[i];
    twin.announce({.step = static_cast<int64_t>(i),
                   .samples = planner::groups_of(steps[i]),
                   .layout = layout,
                   .limit_bytes = plan.limit.limit_bytes});
    const auto answer = twin.foresight(static_cast<int64_t>(i), std::chrono::seconds(600));
    VLMTRAIN_CHECK(answer && answer->fits, "step {} is not foreseen to fit", i);
    all.cut += answer->layout != layout;
    all.released += answer->release_first;
    all.before_release += all.released == 0;
    all.cuts.push_back(answer->layout.cut);
    all.reserved_bytes.push_back(answer->peaks.reserved_bytes);
  }
  return all;
}

int64_t passes_of(const std::vector<engine::Cut>& cuts) {
  int64_t passes = 0;
  for (const auto& cut : cuts) passes += cut.micro_batches();
  return passes;
}

/// Steps that do not fit into one pass less by the table, and on the card do, as a table that allows more cuts them.
int64_t steps_that_fit_in_fewer(planner::RehearsalProcess& process, const planner::Plan& plan,
                                const std::vector<Samples>& steps, const std::vector<engine::Cut>& cuts) {
  int64_t found = 0;
  for (size_t i = 0; i < std::min(kTimedSteps, steps.size()); ++i) {
    CostTable wider = plan.cut->table;
    for (int percent = 1; percent <= 12; ++percent) {
      wider.limit_bytes += plan.cut->table.limit_bytes / 100;
      engine::Cut cut = planner::cut_by_memory(steps[i], wider);
      if (cut.micro_batches() >= cuts[i].micro_batches()) continue;
      const auto samples = planner::groups_of(steps[i]);
      const auto outcome =
          process.rehearse({.choices = plan.chosen.choices, .steps = {samples, samples}, .cuts = {cut, cut}});
      found += outcome.peaks().reserved_bytes <= plan.limit.limit_bytes;
      break;
    }
  }
  return found;
}

void examine(const Mixture& mixture, int64_t count, uint64_t seed) {
  const app::TemporaryFolder folder;
  models::write_preset_config(mixture.model, folder.path());
  Random random(seed, 0);
  const auto samples = data_set(mixture, folder.path(), random);
  planner::PlanRequest request;
  request.model = mixture.model;
  request.job.model = folder.path();
  if (mixture.lora_rank > 0) request.job.lora = nn::LoraSettings{.rank = mixture.lora_rank};
  request.card = planner::card_by_name(mixture.card);
  request.workload = {.candidates = planner::worst_batches(samples, kGlobalBatch), .global_batch_size = kGlobalBatch};
  const auto draw = [&] {
    Samples step;
    for (int64_t sample = 0; sample < kGlobalBatch; ++sample)
      step.push_back(samples.shapes.at(random.between(0, kDataSet - 1)));
    return step;
  };
  const planner::Plan equal = planner::make_plan(request);
  for (int64_t i = 0; i < planner::steps_to_draw(kGlobalBatch); ++i) request.workload.drawn.push_back({draw()});
  const planner::Plan plan = planner::make_plan(request);
  fmt::print(stderr, "{} on {}: {:.1f} s, with the cut {:.1f} s; {} of {} blocks\n", mixture.model, mixture.card,
             equal.effort.seconds, plan.effort.seconds,
             plan.chosen.choices.recompute.vision + plan.chosen.choices.recompute.language,
             plan.detail.vision_blocks + plan.detail.language_blocks);
  if (!plan.fits || !plan.cut) {
    fmt::print("| {} | {} | {} | no cut by memory |\n", mixture.name, mixture.model, mixture.card);
    return;
  }
  fmt::print(stderr, "{}\n{}\n", plan.cut->to_json().dump(), plan.cut->table.to_json().dump());

  std::vector<Samples> steps;
  std::vector<engine::Cut> cuts;
  std::vector<engine::Cut> equal_cuts;
  std::vector<engine::Cut> fixed_cuts;
  int64_t optimum = 0;
  for (int64_t i = 0; i < count; ++i) {
    Samples step = draw();
    cuts.push_back(planner::cut_by_memory(step, plan.cut->table));
    equal_cuts.push_back(engine::equal_cut(kGlobalBatch, equal.chosen.choices.micro_batch_size));
    fixed_cuts.push_back(engine::equal_cut(kGlobalBatch, kFixedMicroBatch));
    optimum += Optimum(step, plan.cut->table).passes(cuts.back().micro_batches());
    steps.push_back(std::move(step));
  }

  planner::RehearsalProcess unlimited(plan.job, planner::rehearsal_card(plan.card));
  const double by_memory = samples_per_second(unlimited, plan.chosen.choices, steps, cuts);
  const double by_number = samples_per_second(unlimited, equal.chosen.choices, steps, equal_cuts);
  const int64_t fewer = steps_that_fit_in_fewer(unlimited, plan, steps, cuts);
  const std::vector<Samples> first(steps.begin(),
                                   steps.begin() + static_cast<std::ptrdiff_t>(std::min(kTimedSteps, steps.size())));
  planner::PlanRequest single = request;
  single.fixed.micro_batch_size = 1;
  const planner::Plan split = planner::make_plan(single);
  const Foreseen foreseen_split = foresee(split, split.chosen.choices, first, fixed_cuts);
  const double by_splits = samples_per_second(unlimited, split.chosen.choices, first, foreseen_split.cuts);

  const Foreseen foreseen = foresee(plan, plan.chosen.choices, steps, cuts);
  planner::RehearsalProcess card(plan.job, {.gpu = std::string(plan.card.gpu->name),
                                            .memory_bytes = plan.limit.card_bytes,
                                            .used_bytes = plan.limit.context_bytes});
  planner::RehearsalRequest run{.choices = plan.chosen.choices, .steps = {}, .cuts = foreseen.cuts};
  for (const auto& step : steps) run.steps.push_back(planner::groups_of(step));
  const auto outcome = card.rehearse(run);
  // From where the twin had a run empty its cache these steps, which do not, are other ones.
  int64_t exact = 0;
  for (size_t i = 0; i < static_cast<size_t>(foreseen.before_release); ++i) {
    exact += outcome.steps[i].reserved_bytes == foreseen.reserved_bytes[i];
  }
  const auto share = [&](int64_t passes) { return static_cast<double>(passes) / static_cast<double>(count); };
  fmt::print(
      "| {} | {}{} | {} | {} × {} | {:.2f} | {:.3f} | {} of {} | {:.2f} | {:.2f} ({:.2f}×) | {:.2f} ({:.2f}×) | {} | "
      "{} "
      "+ {} | {} of {} | {:.1f} % |\n",
      mixture.name, mixture.model, mixture.lora_rank > 0 ? ", LoRA" : ", full", mixture.card,
      equal.chosen.choices.micro_batch_size, equal.accumulation_steps(), share(passes_of(cuts)),
      static_cast<double>(passes_of(cuts)) / static_cast<double>(optimum), fewer, first.size(), by_memory, by_number,
      by_memory / by_number, by_splits, by_memory / by_splits, outcome.out_of_memory ? "yes" : "no", foreseen.cut,
      foreseen.released, exact, foreseen.before_release,
      100 * static_cast<double>(outcome.peaks().reserved_bytes) / static_cast<double>(plan.limit.limit_bytes));
  std::fflush(stdout);
}

}  // namespace

}  // namespace vlmtrain

int main(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "rehearse") {  // as vlmtrain itself: the rehearsal process
    vlmtrain::planner::serve_rehearsals();
    return 0;
  }
  const int64_t steps = count > 1 ? std::atoll(arguments[1]) : 500;
  const auto seed = static_cast<uint64_t>(count > 2 ? std::atoll(arguments[2]) : 1);
  const int64_t only = count > 3 ? std::atoll(arguments[3]) : -1;
  fmt::print(
      "| samples | model | card | equal cut | passes a step | of the optimum | in fewer | samples/s | equal cut | "
      "split "
      "fours | ran out | cut + emptied by the twin | exact, before that | most reserved, of the limit |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int64_t i = 0; i < std::ssize(vlmtrain::kMixtures); ++i) {
    if (only < 0 || i == only) vlmtrain::examine(vlmtrain::kMixtures[i], steps, seed);
  }
  return 0;
}

#include "planner/cost_learning.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/nonnegative_fit.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/planner/step_cut.h"

namespace vlmtrain::planner {

namespace {

/// Shares of what there is for activations between which a set says where the limit lies.
constexpr double kLeastShare = 0.4;
constexpr double kMostShare = 1.15;
/// The weight of the others, which say how the terms differ.
constexpr double kFarWeight = 0.02;
constexpr int64_t kRounds = 3;
constexpr int64_t kFullestOfARound = 6;
/// A sample that takes more of what there is for activations has no place for a second one.
constexpr double kRoomForTwo = 0.6;
constexpr int64_t kMostSteps = 12;
constexpr int64_t kMostPasses = 40;
/// Of a step: further micro-batches repeat themselves.
constexpr int64_t kPassesOfDrawn = 8;
constexpr int64_t kPassesOfLargest = 4;
constexpr int64_t kMostLowerings = 4;
constexpr int64_t kLeastLowering = 200;  // of the limit, as a part
/// What the allocator takes at a time.
constexpr int64_t kPageBytes = int64_t{20} << 20;

std::vector<double> row_of(const CostTable& like, const SetSizes& sizes) {
  std::vector<double> row{1};
  for (const int64_t term : like.terms_of(sizes)) row.push_back(static_cast<double>(term));
  return row;
}

SampleSet set_of(const SampleSet& step, const engine::Cut& cut, int64_t micro_batch) {
  SampleSet set;
  for (const int64_t place : cut.micro_batch(micro_batch)) set.push_back(step[static_cast<size_t>(place)]);
  return set;
}

class Learner {
 public:
  Learner(SetRehearsal& rehearsal, const CutQuestion& question)
      : rehearsal_(rehearsal), question_(question), plan_{.table = question.like} {
    for (const auto* steps : {&question.largest, &question.drawn}) {
      for (const SampleSet& step : *steps) {
        for (const auto& shape : step) pool_.push_back(&shape);
      }
    }
  }

  CutPlan learn() {
    add(singles());
    add(small_sets());
    for (int64_t round = 0; round < kRounds; ++round) {
      fit();
      if (!add(fullest_sets())) break;
    }
    fit();
    settle();
    return plan_;
  }

 private:
  template <class Size>
  const data::SampleShape& largest_by(const Size& size) const {
    return **std::ranges::max_element(pool_, {}, [&](const data::SampleShape* shape) { return size(*shape); });
  }

  /// The largest and the smallest by each size, and some between them.
  std::vector<SampleSet> singles() const {
    using Shape = data::SampleShape;
    std::vector<SampleSet> sets;
    const auto add_by = [&](const auto& size) {
      sets.push_back({largest_by(size)});
      sets.push_back({largest_by([&](const Shape& shape) { return -size(shape); })});
    };
    add_by([](const Shape& shape) { return shape.tokens; });
    add_by([](const Shape& shape) { return shape.pixel_rows; });
    add_by([](const Shape& shape) { return shape.label_tokens; });
    if (largest_by([](const Shape& shape) { return shape.masks; }).masks > 0) {
      add_by([](const Shape& shape) { return shape.masks; });
      add_by([](const Shape& shape) { return shape.mask_pictures; });
    }
    add_by([](const Shape& shape) { return shape.tokens - shape.image_tokens; });
    auto sorted = pool_;
    std::ranges::stable_sort(sorted, {}, [](const Shape* shape) { return shape->tokens; });
    for (const size_t quarter : {1, 2, 3}) sets.push_back({*sorted[quarter * (sorted.size() - 1) / 4]});
    return sets;
  }

  /// Two and four of the same where there is room, and two that differ most.
  std::vector<SampleSet> small_sets() const {
    std::vector<SampleSet> sets;
    for (const auto& single : singles()) {
      const auto known = std::ranges::find(sets_, sizes_of(single), &RehearsedSet::sizes);
      const int64_t more = known->bytes - floor();
      const int64_t room = question_.like.limit_bytes - floor();
      const auto has_room = [&](int64_t count) {
        return static_cast<double>(more) * static_cast<double>(count) <= 2 * kRoomForTwo * static_cast<double>(room);
      };
      for (const int64_t count : {2, 4}) {
        if (has_room(count) && is_allowed(count)) {
          sets.emplace_back(static_cast<size_t>(count), single.front());
        }
      }
    }
    return sets;
  }

  bool is_allowed(int64_t samples) const {
    return question_.like.most_samples == 0 || samples <= question_.like.most_samples;
  }

  int64_t floor() const { return std::ranges::min_element(sets_, {}, &RehearsedSet::bytes)->bytes; }

  /// Of the drawn steps as they are cut now: the fullest, and those with most of each size.
  std::vector<SampleSet> fullest_sets() const {
    std::vector<SampleSet> sets;
    for (const SampleSet& step : question_.drawn) {
      const engine::Cut cut = cut_by_memory(step, plan_.table);
      for (int64_t i = 0; i < cut.micro_batches(); ++i) sets.push_back(set_of(step, cut, i));
    }
    std::vector<SampleSet> chosen;
    const auto choose = [&](int64_t count, const auto& size) {
      std::ranges::stable_sort(sets, std::ranges::greater{}, [&](const SampleSet& set) { return size(sizes_of(set)); });
      const auto last = sets.begin() + std::min(count, std::ssize(sets));
      chosen.insert(chosen.end(), sets.begin(), last);
    };
    choose(2, [](const SetSizes& sizes) { return sizes.samples; });
    choose(2, [](const SetSizes& sizes) { return sizes.tokens; });
    choose(2, [](const SetSizes& sizes) { return sizes.pixel_rows; });
    choose(2, [](const SetSizes& sizes) { return sizes.label_tokens; });
    choose(2, [](const SetSizes& sizes) { return sizes.masks; });
    choose(kFullestOfARound, [this](const SetSizes& sizes) { return plan_.table.bytes(sizes); });
    return chosen;
  }

  /// Those that were not rehearsed yet. → Whether there were any.
  bool add(std::vector<SampleSet> sets) {
    std::vector<SampleSet> fresh;
    for (auto& set : sets) {
      const SetSizes sizes = sizes_of(set);
      const auto has_these = [&](const SampleSet& other) { return sizes_of(other) == sizes; };
      if (std::ranges::find(sets_, sizes, &RehearsedSet::sizes) != sets_.end()) continue;
      if (std::ranges::any_of(fresh, has_these)) continue;
      fresh.push_back(std::move(set));
    }
    if (fresh.empty()) return false;
    const auto bytes = rehearsal_.bytes_of(fresh);
    for (size_t i = 0; i < fresh.size(); ++i) sets_.push_back({sizes_of(fresh[i]), bytes[i]});
    return true;
  }

  void fit() { plan_.table = fitted(question_.like, sets_); }

  /// Runs the steps, and lowers the limit until they keep to the plan's, as far as that helps: a single sample takes
  /// what it takes.
  void settle() {
    plan_.rehearsed_sets = std::ssize(sets_);
    const int64_t limit = question_.like.limit_bytes;
    int64_t peak = run_steps();
    for (int64_t lowered = 0; peak > limit && lowered < kMostLowerings; ++lowered) {
      const CutPlan before = plan_;
      plan_.table.limit_bytes -= peak - limit + std::min(kPageBytes, limit / kLeastLowering);
      const int64_t now = run_steps();
      if (now >= peak) {
        plan_ = before;
        return;
      }
      peak = now;
    }
  }

  /// → Bytes reserved at most.
  int64_t run_steps() {
    describe_drawn();
    std::vector<Part> parts;
    std::vector<size_t> drawn;
    int64_t passes = 0;
    for (size_t i = 0; i < question_.drawn.size() && std::ssize(drawn) < kMostSteps && passes < kMostPasses; ++i) {
      drawn.push_back(parts.size());
      parts.push_back(part_of(question_.drawn[i], kPassesOfDrawn));
      passes += parts.back().cut.micro_batches();
      if (i >= question_.largest.size()) continue;
      parts.push_back(part_of(question_.largest[i], kPassesOfLargest));
      passes += parts.back().cut.micro_batches();
    }
    std::vector<SampleSet> steps;
    std::vector<engine::Cut> cuts;
    steps.reserve(parts.size());
    cuts.reserve(parts.size());
    for (const Part& part : parts) {
      steps.push_back(part.samples);
      cuts.push_back(part.cut);
    }
    const auto found = rehearsal_.run(steps, cuts);
    plan_.peaks = found.peaks;
    plan_.rehearsed_steps = std::ssize(drawn);
    if (found.seconds.empty()) return found.peaks.reserved_bytes;
    double seconds = 0;
    double samples = 0;
    for (const size_t place : drawn) {
      const double passes_seconds = found.seconds[place] - found.seconds_beside_passes;
      seconds += found.seconds_beside_passes + passes_seconds / parts[place].share;
      samples += static_cast<double>(parts[place].samples_of_step);
    }
    plan_.step_seconds = seconds / static_cast<double>(drawn.size());
    plan_.samples_per_second = samples / seconds;
    return found.peaks.reserved_bytes;
  }

  /// Into how many micro-batches all drawn steps go.
  void describe_drawn() {
    plan_.drawn_steps = std::ssize(question_.drawn);
    plan_.most_passes = plan_.fewest_passes = 0;
    int64_t passes = 0;
    for (const SampleSet& step : question_.drawn) {
      const int64_t these = cut_by_memory(step, plan_.table).micro_batches();
      passes += these;
      plan_.most_passes = std::max(plan_.most_passes, these);
      plan_.fewest_passes = plan_.fewest_passes == 0 ? these : std::min(plan_.fewest_passes, these);
    }
    plan_.passes_per_step = static_cast<double>(passes) / static_cast<double>(plan_.drawn_steps);
  }

  /// Some micro-batches of a step.
  struct Part {
    SampleSet samples;
    engine::Cut cut;
    double share = 1;  ///< of what the step's samples take
    int64_t samples_of_step = 0;
  };

  /// The fullest and others from among all; they come the fullest first.
  Part part_of(const SampleSet& step, int64_t most_passes) const {
    const engine::Cut whole = cut_by_memory(step, plan_.table);
    const int64_t passes = std::min(most_passes, whole.micro_batches());
    Part part;
    std::vector<int64_t> sizes;
    sizes.reserve(static_cast<size_t>(passes));
    double own_bytes = 0;
    double all_bytes = 0;
    for (int64_t i = 0; i < whole.micro_batches(); ++i) {
      const SampleSet set = set_of(step, whole, i);
      const auto bytes = static_cast<double>(plan_.table.bytes(sizes_of(set)) - plan_.table.base_bytes);
      all_bytes += bytes;
      const int64_t next = std::ssize(sizes) * whole.micro_batches() / passes;
      if (std::ssize(sizes) == passes || i < next) continue;
      own_bytes += bytes;
      part.samples.insert(part.samples.end(), set.begin(), set.end());
      sizes.push_back(std::ssize(set));
    }
    part.cut = engine::cut_in_order(std::move(sizes));
    part.share = all_bytes > 0 ? own_bytes / all_bytes : 1;
    part.samples_of_step = std::ssize(step);
    return part;
  }

  SetRehearsal& rehearsal_;
  const CutQuestion& question_;
  CutPlan plan_;
  std::vector<const data::SampleShape*> pool_;
  std::vector<RehearsedSet> sets_;
};

}  // namespace

CostTable fitted(CostTable like, const std::vector<RehearsedSet>& sets) {
  VLMTRAIN_CHECK(!sets.empty(), "a cost table of no rehearsals");
  const auto floor = static_cast<double>(std::ranges::min_element(sets, {}, &RehearsedSet::bytes)->bytes);
  const double room = std::max(1.0, static_cast<double>(like.limit_bytes) - floor);
  const auto counts = [&](const RehearsedSet& set) {
    const double share = (static_cast<double>(set.bytes) - floor) / room;
    return share >= kLeastShare && share <= kMostShare;
  };
  const bool some_count = std::ranges::any_of(sets, counts);
  std::vector<std::vector<double>> rows;
  std::vector<double> values;
  std::vector<double> weights;
  for (const RehearsedSet& set : sets) {
    rows.push_back(row_of(like, set.sizes));
    values.push_back(static_cast<double>(set.bytes));
    weights.push_back(!some_count || counts(set) ? 1 : kFarWeight);
  }
  const auto fit = nonnegative_fit(rows, values, weights);
  constexpr double kUnits = 1024;
  like.base_bytes = std::llround(std::floor(fit.front()));
  for (size_t term = 0; term < CostTable::kTerms; ++term) {
    like.bytes_per_1024[term] = std::llround(std::ceil(fit[term + 1] * kUnits));
  }
  int64_t lift = 0;
  for (const RehearsedSet& set : sets) {
    if (!some_count || counts(set)) lift = std::max(lift, set.bytes - like.bytes(set.sizes));
  }
  like.base_bytes += lift;
  return like;
}

CutPlan learn_cut(SetRehearsal& rehearsal, const CutQuestion& question) {
  VLMTRAIN_CHECK(!question.drawn.empty(), "no steps to cut");
  return Learner(rehearsal, question).learn();
}

nlohmann::ordered_json CutPlan::to_json() const {
  const auto known = [](double number) { return number > 0 ? nlohmann::ordered_json(number) : nullptr; };
  return {{"drawn_steps", drawn_steps},
          {"passes_per_step", passes_per_step},
          {"fewest_passes", fewest_passes},
          {"most_passes", most_passes},
          {"step_seconds", known(step_seconds)},
          {"samples_per_second", known(samples_per_second)},
          {"allocated_peak_bytes", peaks.allocated_bytes},
          {"reserved_peak_bytes", peaks.reserved_bytes},
          {"rehearsed_steps", rehearsed_steps},
          {"rehearsed_sets", rehearsed_sets},
          {"limit_bytes", table.limit_bytes}};
}

}  // namespace vlmtrain::planner

#include "planner/rehearsed_options.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

/// Sizes of the batches between the worst ones, as shares of it.
constexpr double kMedium = 0.6;
constexpr double kSmall = 0.3;
constexpr int64_t kMostMicroBatches = 2;
/// Of a usual step, whose samples are mixed all the way.
constexpr int64_t kMostOfAverage = 32;
UserError beyond_all_cards(const SampleBatch& batch, const Choices& choices) {
  const data::SampleShape& shape = batch.shapes.front();
  const bool is_one = choices.micro_batch_size == 1;
  return UserError(
      ExitCode::kDoesNotFit,
      fmt::format(
          "{} ({} tokens, {} in {} tiles{}) needs more than {} GB, more than any card has; take fewer or smaller "
          "images{}",
          is_one ? "a sample" : fmt::format("a micro-batch of {} such samples", choices.micro_batch_size), shape.tokens,
          data::media_words(shape), shape.pixel_rows, batch.first_id.empty() ? "" : ", " + batch.first_id,
          kUnlimitedBytes / 1'000'000'000, is_one ? " or shorter texts" : ", shorter texts or a smaller micro-batch"));
}

/// The first `count` samples of a batch.
std::vector<SampleGroup> first_samples(const SampleBatch& batch, int64_t count) {
  const int64_t different = std::min(count, std::ssize(batch.shapes));
  auto groups = groups_of(std::span(batch.shapes).first(static_cast<size_t>(different)));
  groups.back().count += count - different;
  return groups;
}

/// Samples of the same kind, with a share of the tiles and of the text.
std::vector<SampleGroup> scaled(std::vector<SampleGroup> groups, double share) {
  const auto part = [share](int64_t number, int64_t least) {
    return std::clamp(std::llround(static_cast<double>(number) * share),
                      static_cast<long long>(std::min(least, number)), static_cast<long long>(number));
  };
  for (auto& [shape, count] : groups) {
    shape = data::with_share_of_pixels(std::move(shape), share);
    const int64_t text = part(shape.tokens - shape.image_tokens, 2);
    shape.label_tokens = std::min<int64_t>(part(shape.label_tokens, 1), text - 1);
    shape.masks = std::min(shape.masks, shape.label_tokens);
    shape.mask_pictures = std::min(shape.mask_pictures, shape.masks);
    shape.tokens = shape.image_tokens + text;
  }
  return groups;
}

}  // namespace

VirtualCard rehearsal_card(const TargetCard& card) {
  return {.gpu = std::string(card.gpu->name),
          .memory_bytes = kUnlimitedBytes,
          .reported_bytes = card.memory_bytes,
          .multiprocessors = card.multiprocessors};
}

RehearsedOptions::RehearsedOptions(const Job& job, const TargetCard& card, const Workload& workload,
                                   int64_t limit_bytes)
    : job_(job),
      workload_(workload),
      links_(links_of(*card.gpu, workload.world_size, workload.nodes, workload.network_gbit)),
      limit_bytes_(limit_bytes),
      process_(job, rehearsal_card(card)) {}

void RehearsedOptions::must_hold(const SampleBatch& batch) {
  batches_.push_back(batch);
  entries_.clear();
}

Outcome RehearsedOptions::run(const RehearsalRequest& request) {
  Outcome outcome = process_.rehearse(request);
  ++effort_.rehearsals;
  effort_.rehearsal_seconds += outcome.seconds;
  if (!outcome.sums.sums.empty()) sums_ = outcome.sums;
  return outcome;
}

int64_t RehearsedOptions::micro_batches_rehearsed(const Choices& choices) const {
  return std::min(kMostMicroBatches, workload_.samples_per_rank() / choices.micro_batch_size);
}

RehearsalRequest RehearsedOptions::full_request(const Choices& choices, const SampleBatch& batch) const {
  const int64_t samples = micro_batches_rehearsed(choices) * choices.micro_batch_size;
  const auto worst = first_samples(batch, samples);
  const auto micro_batch = first_samples(batch, choices.micro_batch_size);
  return {.choices = choices,
          .steps = {scaled(micro_batch, kMedium), worst, scaled(micro_batch, kSmall), worst},
          .with_costs = true,
          .with_detail = true};
}

double RehearsedOptions::step_seconds(const Choices& choices, const StepCosts& costs) const {
  const int64_t whole_micro_batches = workload_.samples_per_rank() / choices.micro_batch_size;
  const auto micro_batches = static_cast<double>(whole_micro_batches);
  const double each =
      (costs.total.seconds - costs.optimizer.seconds) / static_cast<double>(micro_batches_rehearsed(choices));
  return micro_batches * each + costs.optimizer.seconds + communication(each, whole_micro_batches).waiting_seconds;
}

Communication RehearsedOptions::communication(double pass_seconds, int64_t passes) const {
  return communication_of(links_, sums_, pass_seconds, passes);
}

double RehearsedOptions::tokens_per_step(const SampleBatch& batch) const {
  double tokens = 0;
  for (const auto& group : first_samples(batch, workload_.samples_per_rank())) {
    tokens += static_cast<double>(group.shape.tokens * group.count);
  }
  return tokens * static_cast<double>(workload_.world_size);
}

Communication RehearsedOptions::communication(const Choices& choices) const {
  const StepCosts& costs = *entry_of(choices)->outcome.costs;
  return communication(
      (costs.total.seconds - costs.optimizer.seconds) / static_cast<double>(micro_batches_rehearsed(choices)),
      workload_.samples_per_rank() / choices.micro_batch_size);
}

std::vector<RehearsedOptions::Entry>::const_iterator RehearsedOptions::entry_of(const Choices& choices) const {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return entry.option.choices == choices; });
}

const Option* RehearsedOptions::find(const Choices& choices) const {
  const auto found = entry_of(choices);
  return found == entries_.end() ? nullptr : &found->option;
}

std::vector<const Option*> RehearsedOptions::all() const {
  std::vector<const Option*> options;
  for (const auto& entry : entries_) options.push_back(&entry.option);
  return options;
}

Option RehearsedOptions::rehearse(const Choices& choices) {
  if (const Option* const known = find(choices)) return *known;
  std::optional<Entry> largest;
  for (size_t i = 0; i < batches_.size(); ++i) {
    if (i + 1 < batches_.size()) process_.begin(full_request(choices, batches_[i + 1]));
    Outcome outcome = run(full_request(choices, batches_[i]));
    if (outcome.out_of_memory) throw beyond_all_cards(batches_[i], choices);
    if (largest && outcome.peaks().reserved_bytes <= largest->option.peaks.reserved_bytes) continue;
    Option option{.choices = choices, .peaks = outcome.peaks()};
    option.step_seconds = step_seconds(choices, *outcome.costs);
    option.tokens_per_second = tokens_per_step(batches_[i]) / option.step_seconds;
    option.fits = option.peaks.reserved_bytes <= limit_bytes_;
    option.rehearsed = true;
    largest = Entry{option, std::move(outcome), i};
  }
  entries_.push_back(std::move(*largest));
  return entries_.back().option;
}

std::vector<RehearsedOptions::Probe>::const_iterator RehearsedOptions::known_probe(const Choices& choices,
                                                                                   Wanted wanted) const {
  return std::find_if(probes_.begin(), probes_.end(),
                      [&](const Probe& probe) { return probe.choices == choices && probe.wanted == wanted; });
}

Outcome RehearsedOptions::probe(const Choices& choices, Wanted wanted) {
  const auto known = known_probe(choices, wanted);
  if (known != probes_.end()) return known->outcome;
  probes_.push_back({choices, wanted, probe(choices, worst(), wanted)});
  return probes_.back().outcome;
}

RehearsalRequest RehearsedOptions::probe_request(const Choices& choices, const SampleBatch& batch, Wanted wanted) {
  return {.choices = choices,
          .steps = {first_samples(batch, choices.micro_batch_size)},
          .with_costs = wanted != Wanted::kPeaks,
          .with_detail = wanted == Wanted::kCostsAndDetail};
}

Outcome RehearsedOptions::probe(const Choices& choices, const SampleBatch& batch, Wanted wanted) {
  Outcome outcome = run(probe_request(choices, batch, wanted));
  if (outcome.out_of_memory) throw beyond_all_cards(batch, choices);
  return outcome;
}

void RehearsedOptions::expect(const Choices& choices) {
  if (find(choices) == nullptr) process_.begin(full_request(choices, batches_.front()));
}

void RehearsedOptions::expect_probe(const Choices& choices, Wanted wanted) {
  if (known_probe(choices, wanted) == probes_.end()) expect_probe(choices, worst(), wanted);
}

void RehearsedOptions::expect_probe(const Choices& choices, const SampleBatch& batch, Wanted wanted) {
  process_.begin(probe_request(choices, batch, wanted));
}

const Outcome& RehearsedOptions::outcome_of(const Choices& choices, bool with_timeline) {
  const auto entry = entries_.begin() + (entry_of(choices) - entries_.cbegin());
  VLMTRAIN_CHECK(entry != entries_.end(), "a plan that was not rehearsed");
  if (with_timeline && entry->outcome.detail->timeline.empty()) {
    RehearsalRequest request = full_request(choices, batches_[entry->batch]);
    request.with_timeline = true;
    entry->outcome = run(request);
  }
  return entry->outcome;
}

const SampleBatch& RehearsedOptions::batch_of(const Choices& choices) const {
  const auto entry = entry_of(choices);
  VLMTRAIN_CHECK(entry != entries_.end(), "a plan that was not rehearsed");
  return batches_[entry->batch];
}

int64_t RehearsedOptions::reserved_bytes(const Choices& choices, const SampleBatch& batch) {
  RehearsalRequest request = full_request(choices, batch);
  request.with_costs = request.with_detail = false;
  return run(request).peaks().reserved_bytes;
}

AverageStep RehearsedOptions::average_step(const Choices& choices, const std::vector<data::SampleShape>& samples) {
  AverageStep average;
  std::vector<SampleGroup> rehearsed;
  double tokens = 0;
  const int64_t most = kMostOfAverage * choices.micro_batch_size;
  for (size_t i = 0; i < samples.size(); ++i) {
    tokens += static_cast<double>(samples[i].tokens);
    if (static_cast<int64_t>(i) < most) add_sample(rehearsed, samples[i]);
    const auto known = std::ranges::find(average.samples, samples[i], &SampleGroup::shape);
    if (known == average.samples.end()) {
      average.samples.push_back({samples[i], 1});
    } else {
      ++known->count;
    }
  }
  const Outcome outcome = run({.choices = choices, .steps = {rehearsed, rehearsed}, .with_costs = true});
  if (outcome.out_of_memory) throw beyond_all_cards({.shapes = samples, .first_id = {}}, choices);
  average.peaks = outcome.peaks();
  const auto all = static_cast<double>(samples.size());
  const double parts = std::max(1.0, all / static_cast<double>(most));
  const double optimizer = outcome.costs->optimizer.seconds;
  const double passes = outcome.costs->total.seconds - optimizer;
  const double last_pass =
      passes * static_cast<double>(choices.micro_batch_size) / std::min(all, static_cast<double>(most));
  average.step_seconds =
      parts * passes + optimizer + communication(last_pass, std::llround(parts * passes / last_pass)).waiting_seconds;
  const auto ranks = static_cast<double>(workload_.world_size);
  average.tokens_per_second = ranks * tokens / average.step_seconds;
  average.samples_per_second = ranks * all / average.step_seconds;
  return average;
}

std::optional<int64_t> RehearsedOptions::reserved_bytes(const Job& job, const Choices& choices,
                                                        const std::vector<SampleBatch>& candidates) {
  process_.set_job(job);
  std::optional<int64_t> most = 0;
  for (const auto& candidate : candidates) {
    RehearsalRequest request = full_request(choices, candidate);
    request.with_costs = request.with_detail = false;
    const Outcome outcome = run(request);
    if (outcome.out_of_memory) {
      most.reset();
      break;
    }
    most = std::max(*most, outcome.peaks().reserved_bytes);
  }
  process_.set_job(job_);
  return most;
}

}  // namespace vlmtrain::planner

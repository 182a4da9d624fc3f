#include "planner/option_search.h"

#include <algorithm>
#include <limits>
#include <set>

#include "planner/frugal.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kMostGuesses = 16;
constexpr int64_t kSmallLossChunkRows = 128;
constexpr int64_t kVerySmallLossChunkRows = 16;
constexpr int64_t kMostVisionPasses = 8;
/// Shares of the limit above which no fine tuning helps.
constexpr double kClearlyTooLarge = 1.1;
/// The same of what is only estimated.
constexpr double kLikelyTooLarge = 1.3;
/// Micro-batch sizes among the alternatives that do not fit however much is recomputed.
constexpr int64_t kTooLargeShown = 2;
/// Passes of the tower that are rehearsed for the sake of the allocator's segments alone.
constexpr int64_t kFewPictures = 16;

}  // namespace

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> small;
  std::vector<int64_t> large;
  for (int64_t candidate = 1; candidate * candidate <= number; ++candidate) {
    if (number % candidate != 0) continue;
    small.push_back(candidate);
    if (candidate != number / candidate) large.push_back(number / candidate);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

OptionSearch::OptionSearch(RehearsedOptions& rehearsed, const Workload& workload, const FixedChoices& fixed,
                           int64_t limit_bytes)
    : rehearsed_(rehearsed), workload_(workload), fixed_(fixed), limit_bytes_(limit_bytes) {
  sizes_ = fixed.micro_batch_size ? std::vector{*fixed.micro_batch_size} : divisors(workload.samples_per_rank());
}

std::optional<Option> OptionSearch::find() {
  probe();
  std::optional<Option> best;
  for (int64_t guesses = 0; guesses < kMostGuesses; ++guesses) {
    auto guess = next_guess();
    if (!guess) guess = least_untried();
    if (!guess) break;
    if (const auto larger = larger_that_may_fit(*guess)) rehearsed_.expect(*larger);
    const Option option = rehearse(*guess);
    if (!option.fits) continue;
    if (!best || option.step_seconds < best->step_seconds) best = option;
    if (next_guess() == guess) break;
  }
  if (!best) return find_with_smaller_passes();
  while (const auto larger = larger_that_may_fit(best->choices)) {
    const Option option = rehearse(*larger);
    if (!option.fits) break;
    best = option;
  }
  return best;
}

Option OptionSearch::least() {
  if (least_) return *least_;
  // Of equals the first: rows and tiles are not taken one by one where that saves nothing.
  rehearsed_.rehearse(smallest(1, choices_at_defaults().loss_chunk_rows));
  for (const Choices& choices : frugal_choices(fixed_, workload_, blocks_)) {
    rehearsed_.rehearse(choices);
    const memory::Component most = rehearsed_.outcome_of(choices, /*with_timeline=*/false).detail->peak.place.component;
    // A tower's last block goes from its forward into its backward pass: kept, it may take less than its input and
    // itself.
    if (fixed_.recompute.is_auto()) rehearse_with_last_block_kept(choices, most);
    // Where the tower does not take most, other passes of it change only how the allocator's segments are filled, and
    // many tiles make them slow to rehearse.
    const data::SampleShape& worst = rehearsed_.worst().shapes.front();
    if (most != memory::Component::kVision && worst.images + worst.video_frames > kFewPictures) break;
  }
  for (const Option* known : rehearsed_.all()) {
    if (!is_allowed(known->choices)) continue;
    if (!least_ || known->peaks.reserved_bytes < least_->peaks.reserved_bytes) least_ = *known;
  }
  return *least_;
}

void OptionSearch::rehearse_with_last_block_kept(Choices choices, memory::Component tower) {
  const bool is_vision = tower == memory::Component::kVision;
  int64_t& blocks = is_vision ? choices.recompute.vision : choices.recompute.language;
  if (blocks == 0) return;
  --blocks;
  rehearsed_.rehearse(choices);
}

/// Whether a person has fixed nothing else; `rehearsed_` may know plans of another search.
bool OptionSearch::is_allowed(const Choices& choices) const {
  const auto keeps = [](const std::optional<int64_t>& wanted, int64_t chosen) { return !wanted || *wanted == chosen; };
  return keeps(fixed_.micro_batch_size, choices.micro_batch_size) &&
         keeps(fixed_.vision_tiles_per_pass, choices.vision_tiles_per_pass) &&
         keeps(fixed_.loss_chunk_rows, choices.loss_chunk_rows) &&
         (fixed_.recompute.is_auto() || fixed_.recompute.blocks_of(blocks_) == choices.recompute);
}

std::vector<Option> OptionSearch::alternatives() const {
  std::vector<Option> options;
  int64_t too_large = 0;
  for (const int64_t size : sizes_) {
    if (expected_bytes(choices_at(size, order_.size() - 1)) > limit_bytes_ && ++too_large > kTooLargeShown) break;
    std::set<size_t> levels{0, order_.size() - 1};
    if (const auto level = least_level(size)) levels.insert(*level);
    for (const size_t level : levels) options.push_back(known_or_estimated(choices_at(size, level)));
  }
  return options;
}

void OptionSearch::probe() {
  using Wanted = RehearsedOptions::Wanted;
  const Choices one = choices_at_defaults();
  const auto with = [&](int64_t size, models::RecomputeBlocks blocks) {
    Choices choices = one;
    choices.micro_batch_size = size;
    choices.recompute = blocks;
    return choices;
  };
  const bool several = workload_.samples_per_rank() > 1;
  Probes probes;
  if (several) rehearsed_.expect_probe(with(2, {}), Wanted::kCosts);
  probes.one = rehearsed_.probe(one, Wanted::kCostsAndDetail);
  const RehearsalDetail& detail = *probes.one.detail;
  for (const auto component :
       {memory::Component::kWeights, memory::Component::kGradients, memory::Component::kOptimizer}) {
    standing_bytes_ += detail.peak.by_component[static_cast<size_t>(component)];
  }
  // Two samples of which one takes more than half of all are not rehearsed; no card would hold them.
  const bool is_beyond_all_cards = probes.one.peaks().reserved_bytes > kUnlimitedBytes / 2;
  if (is_beyond_all_cards && !fixed_.micro_batch_size) sizes_.resize(1);
  if (several && !is_beyond_all_cards) probes.two = rehearsed_.probe(with(2, {}), Wanted::kCosts);
  blocks_ = {.vision = detail.vision_blocks, .language = detail.language_blocks};
  const bool has_images = rehearsed_.worst().shapes.front().pixel_rows > 0;
  if (blocks_.language > 0) rehearsed_.expect_probe(with(1, {0, blocks_.language}), Wanted::kPeaks);
  if (has_images && blocks_.vision > 0) probes.vision = rehearsed_.probe(with(1, {blocks_.vision, 0}), Wanted::kPeaks);
  if (blocks_.language > 0) probes.language = rehearsed_.probe(with(1, {0, blocks_.language}), Wanted::kPeaks);
  if (probes.language && fixed_.recompute.is_auto() && may_keep_attention(*probes.one.costs)) {
    probes.attention_kept =
        rehearsed_.probe(with(1, {0, blocks_.language, /*language_attention_kept=*/blocks_.language}), Wanted::kPeaks);
  }
  estimate_.emplace(probes);
  order_ = estimate_->recompute_order();
  if (!fixed_.recompute.is_auto()) {
    order_ = {fixed_.recompute.blocks_of(blocks_)};
  }
}

Choices OptionSearch::choices_at_defaults() const {
  return {.micro_batch_size = 1,
          .recompute = {},
          .vision_tiles_per_pass = fixed_.vision_tiles_per_pass.value_or(0),
          .loss_chunk_rows = fixed_.loss_chunk_rows.value_or(Choices{}.loss_chunk_rows),
          .expandable_segments = fixed_.expandable_segments};
}

Choices OptionSearch::choices_at(int64_t size, size_t level) const {
  Choices choices = choices_at_defaults();
  choices.micro_batch_size = size;
  choices.recompute = order_[level];
  return choices;
}

int64_t OptionSearch::expected_bytes(const Choices& choices) const {
  if (const Option* known = rehearsed_.find(choices)) return known->peaks.reserved_bytes;
  return estimate_->reserved_bytes(choices.micro_batch_size, choices.recompute);
}

/// The fewest blocks with which a micro-batch is expected to fit.
std::optional<size_t> OptionSearch::least_level(int64_t size) const {
  for (size_t level = 0; level < order_.size(); ++level) {
    if (expected_bytes(choices_at(size, level)) <= limit_bytes_) return level;
  }
  return std::nullopt;
}

double OptionSearch::expected_seconds(const Choices& choices) const {
  if (const Option* known = rehearsed_.find(choices)) return known->step_seconds;
  const int64_t whole_micro_batches = workload_.samples_per_rank() / choices.micro_batch_size;
  const auto micro_batches = static_cast<double>(whole_micro_batches);
  const double pass = estimate_->micro_batch_seconds(choices.micro_batch_size, choices.recompute);
  return micro_batches * pass + estimate_->optimizer_seconds() +
         rehearsed_.communication(pass, whole_micro_batches).waiting_seconds;
}

/// The fastest of what is expected to fit.
std::optional<Choices> OptionSearch::next_guess() const {
  std::optional<Choices> best;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const int64_t size : sizes_) {
    const auto level = least_level(size);
    if (!level) continue;
    const Choices choices = choices_at(size, *level);
    const double seconds = expected_seconds(choices);
    if (seconds < best_seconds) {
      best_seconds = seconds;
      best = choices;
    }
  }
  return best;
}

/// The smallest micro-batch with everything recomputed, unless it is known or hopeless: the estimate adds up what
/// blocks save each, and may be too high by more than a tenth where temporaries are large.
std::optional<Choices> OptionSearch::least_untried() const {
  const Choices choices = choices_at(sizes_.front(), order_.size() - 1);
  const bool hopeless =
      static_cast<double>(expected_bytes(choices)) > kLikelyTooLarge * static_cast<double>(limit_bytes_);
  if (hopeless || standing_bytes_ > limit_bytes_ || rehearsed_.find(choices) != nullptr) return std::nullopt;
  return choices;
}

Option OptionSearch::rehearse(const Choices& choices) {
  const Option option = rehearsed_.rehearse(choices);
  estimate_->learn(choices.micro_batch_size, choices.recompute, option.peaks.reserved_bytes);
  return option;
}

/// The same choices with the next larger micro-batch, unless that is far from fitting.
std::optional<Choices> OptionSearch::larger_that_may_fit(const Choices& choices) const {
  const auto next = std::upper_bound(sizes_.begin(), sizes_.end(), choices.micro_batch_size);
  if (next == sizes_.end()) return std::nullopt;
  Choices larger = choices;
  larger.micro_batch_size = *next;
  const bool hopeless =
      static_cast<double>(expected_bytes(larger)) > kClearlyTooLarge * static_cast<double>(limit_bytes_);
  return hopeless ? std::nullopt : std::optional{larger};
}

/// Where what needs least fits: the first that fits of ever smaller and slower passes.
std::optional<Option> OptionSearch::find_with_smaller_passes() {
  const Option most_frugal = least();
  if (!most_frugal.fits) return std::nullopt;
  for (const Choices& choices : ever_smaller_passes()) {
    const Option option = rehearsed_.rehearse(choices);
    if (option.fits) return option;
  }
  return most_frugal;
}

std::vector<Choices> OptionSearch::ever_smaller_passes() const {
  std::vector<Choices> list{choices_at(sizes_.front(), order_.size() - 1)};
  const int64_t tiles = rehearsed_.worst().shapes.front().pixel_rows * sizes_.front();
  const int64_t most_passes = fixed_.vision_tiles_per_pass ? 1 : std::clamp<int64_t>(tiles, 1, kMostVisionPasses);
  for (int64_t passes = 1; passes <= most_passes; passes *= 2) list.push_back(smallest(passes, kSmallLossChunkRows));
  list.push_back(smallest(most_passes, kVerySmallLossChunkRows));
  return list;
}

/// What is left of the shape of a step once micro-batch and recomputation are settled.
Choices OptionSearch::smallest(int64_t vision_passes, int64_t loss_chunk_rows) const {
  Choices choices = choices_at(sizes_.front(), order_.size() - 1);
  if (fixed_.recompute.is_auto()) choices.recompute = blocks_;
  const int64_t tiles = rehearsed_.worst().shapes.front().pixel_rows * choices.micro_batch_size;
  if (!fixed_.vision_tiles_per_pass && vision_passes > 1) {
    choices.vision_tiles_per_pass = (tiles + vision_passes - 1) / vision_passes;
  }
  if (!fixed_.loss_chunk_rows) choices.loss_chunk_rows = loss_chunk_rows;
  return choices;
}

Option OptionSearch::known_or_estimated(const Choices& choices) const {
  if (const Option* known = rehearsed_.find(choices)) return *known;
  // Nothing needs less than the least, whatever the straight lines say.
  const int64_t bytes = std::max(expected_bytes(choices), least_ ? least_->peaks.reserved_bytes : 0);
  Option option{.choices = choices, .peaks = {0, bytes}};
  option.step_seconds = expected_seconds(choices);
  option.tokens_per_second = rehearsed_.tokens_per_step(rehearsed_.worst()) / option.step_seconds;
  option.fits = option.peaks.reserved_bytes <= limit_bytes_;
  return option;
}

}  // namespace vlmtrain::planner

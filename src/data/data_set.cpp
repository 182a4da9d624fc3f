#include "vlmtrain/data/data_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// The arguments of SampleOrder that define the mixture.
struct MixturePlan {
  std::vector<MixtureSource> sources;
  std::vector<SourceShares> shares;
};

/// Returns a mixture source of the samples in [begin, end).
MixtureSource make_range_source(std::string name, int64_t begin, int64_t end) {
  MixtureSource mixture_source{.name = std::move(name), .samples = {}};
  mixture_source.samples.reserve(static_cast<size_t>(end - begin));
  for (int64_t index = begin; index < end; ++index) mixture_source.samples.push_back(index);
  return mixture_source;
}

MixturePlan plan_single_source_mixture(const DataSet& data_set) {
  return {.sources = {make_range_source("", 0, data_set.size())}, .shares = {{.first_batch = 0, .shares = {1}}}};
}

/// Returns one mixture source for each source. A source without a weight has a share in proportion
/// to its size and repeat.
MixturePlan plan_mixture_by_source(const DataSet& data_set) {
  MixturePlan plan;
  std::vector<double> shares;
  for (size_t source_index = 0; source_index < data_set.sources().size(); ++source_index) {
    const Source& source = data_set.sources()[source_index].source;
    const auto [begin, end] = data_set.record_range(source_index);
    MixtureSource& mixture_source = plan.sources.emplace_back(make_range_source(source.path, begin, end));
    mixture_source.repeat = source.repeat.value_or(1);
    shares.push_back(source.weight.value_or(mixture_source.repeat * static_cast<double>(end - begin)));
  }
  plan.shares = {{.first_batch = 0, .shares = std::move(shares)}};
  return plan;
}

/// Returns the samples of each task by name. Unusable samples are included, so that a position in
/// an epoch does not depend on which samples are usable; the loader skips them.
std::map<std::string, std::vector<int64_t>> group_samples_by_task(const SampleIndex& sample_index) {
  std::map<std::string, std::vector<int64_t>> samples;
  for (int64_t i = 0; i < sample_index.tasks.size(); ++i) {
    samples[get_task_display_name(sample_index.tasks[i])].push_back(i);
  }
  return samples;
}

/// Returns the shares of `change` in the order of the sources. Throws UserError (kUsage) unless the
/// tasks are exactly the names of the sources.
std::vector<double> match_task_shares_to_sources(const TaskShares& change, const std::vector<MixtureSource>& sources) {
  std::vector<std::string> names, errors;
  names.reserve(sources.size());
  for (const MixtureSource& mixture_source : sources) names.push_back(mixture_source.name);
  std::vector<std::optional<double>> shares(sources.size());
  for (const auto& [task, share] : change.shares) {
    const auto match = std::ranges::find(names, task);
    if (match != names.end()) {
      shares[static_cast<size_t>(match - names.begin())] = share;
      continue;
    }
    const auto suggestion = find_nearest_word(task, names);
    errors.push_back(fmt::format("{}: is not a task of {}; {}", task, keys::data::kTrain,
                                 suggestion ? fmt::format("did you mean {}?", *suggestion)
                                            : fmt::format("its tasks are {}", fmt::join(names, ", "))));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!shares[i]) errors.push_back(fmt::format("{0}: has no share; give it one, which may be 0", names[i]));
  }
  if (!errors.empty()) throw usage_error("{}:\n  {}", keys::data::kTaskShares, fmt::join(errors, "\n  "));
  std::vector<double> result;
  result.reserve(shares.size());
  for (const auto& share : shares) result.push_back(share.value_or(0));
  return result;
}

/// Returns one mixture source for each task.
MixturePlan plan_mixture_by_task(const TaskShareSchedule& task_shares, const SampleIndex& sample_index) {
  MixturePlan plan;
  for (auto& [task, samples] : group_samples_by_task(sample_index)) {
    plan.sources.push_back({.name = task, .samples = std::move(samples)});
  }
  for (const TaskShares& change : task_shares.changes()) {
    plan.shares.push_back(
        {.first_batch = change.first_step, .shares = match_task_shares_to_sources(change, plan.sources)});
  }
  return plan;
}

/// Returns the sizes of all samples, by index; zeros for samples of unknown shape.
std::vector<SampleSize> collect_sample_sizes(const SampleIndex& sample_index) {
  std::vector<SampleSize> sizes(static_cast<size_t>(sample_index.shapes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (const auto shape = sample_index.shapes[static_cast<int64_t>(i)]) {
      sizes[i] = {.tokens = shape->tokens, .num_media = shape->num_media(), .tiles = shape->pixel_rows};
    }
  }
  return sizes;
}

/// Throws UserError (kBadData) if one of several mixture sources has no usable sample.
void check_sources_have_usable_samples(const MixturePlan& plan, const SampleIndex& sample_index) {
  if (!sample_index.is_complete || plan.sources.size() == 1) return;
  for (const MixtureSource& mixture_source : plan.sources) {
    const bool has_usable_sample = std::ranges::any_of(
        mixture_source.samples, [&](int64_t sample) { return sample_index.shapes.is_known(sample); });
    if (!has_usable_sample) {
      throw data_error("{}: none of its {} samples can be used; remove it from {} or {}", mixture_source.name,
                       mixture_source.samples.size(), keys::data::kTrain, keys::data::kTaskShares);
    }
  }
}

}  // namespace

DataSet::DataSet(std::vector<SourceRecords> sources) : sources_(std::move(sources)) {
  VLMTRAIN_CHECK(!sources_.empty(), "a data set needs at least one source");
  int64_t end = 0;
  source_ends_.reserve(sources_.size());
  for (const SourceRecords& source : sources_) source_ends_.push_back(end += source.records->size());
}

std::pair<int64_t, int64_t> DataSet::record_range(size_t source_index) const {
  return {source_index == 0 ? 0 : source_ends_[source_index - 1], source_ends_[source_index]};
}

DataSet::RecordLocation DataSet::locate(int64_t index) const {
  VLMTRAIN_CHECK(index >= 0 && index < size(), "record {} of {}", index, size());
  const auto source_index = static_cast<size_t>(std::ranges::upper_bound(source_ends_, index) - source_ends_.begin());
  return {.source_index = source_index, .index = index - record_range(source_index).first};
}

io::Record DataSet::annotate_with_source(io::Record record, size_t source_index) const {
  const Source& source = sources_[source_index].source;
  if (!source.task.empty()) record.task = source.task;
  if (sources_.size() > 1) record.location = source.path + ", " + record.location;
  return record;
}

io::Record DataSet::at(int64_t index) const {
  const auto [source_index, record_index] = locate(index);
  return annotate_with_source(sources_[source_index].records->at(record_index), source_index);
}

io::Record DataSet::at_without_media_bytes(int64_t index) const {
  const auto [source_index, record_index] = locate(index);
  return annotate_with_source(sources_[source_index].records->at_without_media_bytes(record_index), source_index);
}

uint64_t DataSet::version_hash() const {
  ContentHash hash;
  for (const auto& [source, records] : sources_) {
    const uint64_t version_hash = records->version_hash();
    if (version_hash == 0) return 0;
    hash.add(version_hash).add(source.task).add(source.path);
  }
  return hash.value();
}

std::vector<int64_t> DataSet::block_starts() const {
  const bool has_blocks = std::ranges::any_of(
      sources_, [](const SourceRecords& source) { return !source.records->block_starts().empty(); });
  if (!has_blocks) return {};
  // A source without blocks is divided into blocks, so that the sources mix evenly. The size is
  // typical of row groups; not tuned.
  constexpr int64_t kSamplesPerBlock = 1024;
  std::vector<int64_t> block_starts;
  for (size_t source_index = 0; source_index < sources_.size(); ++source_index) {
    const auto [begin, end] = record_range(source_index);
    const auto source_block_starts = sources_[source_index].records->block_starts();
    for (const int64_t first : source_block_starts) block_starts.push_back(begin + first);
    if (!source_block_starts.empty()) continue;
    for (int64_t first = begin; first < end; first += kSamplesPerBlock) block_starts.push_back(first);
  }
  return block_starts;
}

void reject_oversized_samples(const PackLimits& limits, SampleIndex& sample_index) {
  const auto sizes = collect_sample_sizes(sample_index);
  for (int64_t i = 0; i < sample_index.shapes.size(); ++i) {
    const SampleSize& size = sizes[static_cast<size_t>(i)];
    if (!sample_index.shapes.is_known(i) || limits.fits(size)) continue;
    sample_index.shapes.mark_unknown(i);
    sample_index.shrink_infos.erase(i);
    sample_index.problems[i] = {
        .reason = "larger than a pack",
        .message = fmt::format(
            "sample {} has {}, {} and {}, and a pack may have {}, {}{}; raise {}, {} or {}, or shrink it with {}",
            sample_index.ids[i], pluralize(size.tokens, "token"), pluralize(size.num_media, "image"),
            pluralize(size.tiles, "tile"), pluralize(limits.max_tokens, "token"), pluralize(limits.max_media, "image"),
            limits.max_tiles ? " and " + pluralize(*limits.max_tiles, "tile") : "", keys::data::kPackMaxTokens,
            keys::data::kPackMaxImages, keys::data::kPackMaxTiles, keys::data::kImageMaxPixels)};
  }
}

SampleOrder make_sample_order(const DataSet& data_set, const TaskShareSchedule& task_shares,
                              const SampleIndex& sample_index, OrderSettings settings) {
  const bool has_source_shares =
      std::ranges::any_of(data_set.sources(), [](const DataSet::SourceRecords& source_records) {
        return source_records.source.weight || source_records.source.repeat;
      });
  if (has_source_shares && !task_shares.empty()) {
    throw usage_error("{}: cannot be combined with weights or repeats of sources in {}; remove one of them",
                      keys::data::kTaskShares, keys::data::kTrain);
  }
  std::vector<std::string_view> keys_that_need_sizes;
  if (settings.pack_limits) keys_that_need_sizes.push_back(keys::data::kPacking);
  if (settings.curriculum != Curriculum::kNone) keys_that_need_sizes.push_back(keys::data::kCurriculum);
  if (!task_shares.empty()) keys_that_need_sizes.push_back(keys::data::kTaskShares);
  const bool needs_full_index = !keys_that_need_sizes.empty();
  if (needs_full_index && !sample_index.is_complete) {
    throw usage_error("{}: is false, but the sizes of all samples are needed for {}; set it to true",
                      keys::data::kCheckAtStart, fmt::join(keys_that_need_sizes, " and "));
  }
  MixturePlan plan = has_source_shares     ? plan_mixture_by_source(data_set)
                     : task_shares.empty() ? plan_single_source_mixture(data_set)
                                           : plan_mixture_by_task(task_shares, sample_index);
  check_sources_have_usable_samples(plan, sample_index);
  // Packs and curricula need sizes. Bad samples and those larger than a pack are not packed.
  std::vector<SampleSize> sizes;
  std::vector<char> is_packed;
  if (needs_full_index) sizes = collect_sample_sizes(sample_index);
  if (settings.pack_limits) {
    is_packed.resize(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      is_packed[i] =
          sample_index.shapes.is_known(static_cast<int64_t>(i)) && settings.pack_limits->fits(sizes[i]) ? 1 : 0;
    }
  }
  return {std::move(plan.sources), std::move(plan.shares), std::move(settings),
          data_set.size(),         std::move(sizes),       std::move(is_packed)};
}

namespace {

/// Display name of the samples without a task.
constexpr std::string_view kNoTaskName = "none";

std::string_view get_display_name(std::string_view task) {
  return task.empty() ? kNoTaskName : task;
}

}  // namespace

std::string get_task_display_name(std::string_view task) {
  return std::string(get_display_name(task));
}

TaskTable::TaskTable(const SampleIndex& sample_index, const io::Records& records) {
  if (!sample_index.is_complete) {
    *this = TaskTable(records);
    return;
  }
  SampleCountsByTask counts;
  for (int64_t i = 0; i < sample_index.shapes.size(); ++i) {
    if (sample_index.shapes.is_known(i)) ++counts[std::string(get_display_name(sample_index.tasks[i]))];
  }
  set_sample_counts(counts);
}

TaskTable::TaskTable(const io::Records& records) {
  SampleCountsByTask counts;
  for (int64_t index = 0; index < records.size(); ++index) {
    const io::Record record = records.at_without_media_bytes(index);
    if (record.problem.empty()) ++counts[std::string(get_display_name(record.task))];
  }
  set_sample_counts(counts);
}

void TaskTable::set_sample_counts(const SampleCountsByTask& counts) {
  for (const auto& [name, count] : counts) {
    names_.push_back(name);
    sample_counts_.push_back(count);
  }
}

int64_t TaskTable::find_task_index(std::string_view task) const {
  const auto match = std::ranges::lower_bound(names_, get_display_name(task));
  VLMTRAIN_CHECK(match != names_.end() && *match == get_display_name(task), "{} is not one of the tasks", task);
  return std::distance(names_.begin(), match);
}

void TaskTable::assign_task_indices(std::vector<Sample>& samples) const {
  for (auto& sample : samples) sample.task_index = find_task_index(sample.task);
}

}  // namespace vlmtrain::data

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/tasks.h"

namespace vlmtrain::data {

namespace {

struct MixturePlan {
  std::vector<MixtureSource> sources;
  std::vector<ShareChange> shares;
};

MixtureSource make_range_source(std::string name, int64_t begin, int64_t end) {
  MixtureSource mixture_source{.name = std::move(name), .samples = {}};
  mixture_source.samples.reserve(static_cast<size_t>(end - begin));
  for (int64_t index = begin; index < end; ++index) mixture_source.samples.push_back(index);
  return mixture_source;
}

MixturePlan plan_single_source(const DataSet& data_set) {
  return {.sources = {make_range_source("", 0, data_set.size())}, .shares = {{.from_batch = 0, .shares = {1}}}};
}

MixturePlan plan_by_source(const DataSet& data_set) {
  MixturePlan plan;
  std::vector<double> shares;
  for (size_t source_index = 0; source_index < data_set.sources().size(); ++source_index) {
    const Source& source = data_set.sources()[source_index].source;
    const auto [begin, end] = data_set.record_range(source_index);
    MixtureSource& mixture_source = plan.sources.emplace_back(make_range_source(source.path, begin, end));
    mixture_source.repeat = source.repeat.value_or(1);
    shares.push_back(source.weight.value_or(mixture_source.repeat * static_cast<double>(end - begin)));
  }
  plan.shares = {{.from_batch = 0, .shares = std::move(shares)}};
  return plan;
}

/// The tasks of a data set by name, each with its samples. Of samples that cannot be used the tasks count too: they are
/// passed over where they stand.
std::map<std::string, std::vector<int64_t>> group_samples_by_task(const SampleIndex& sample_index) {
  std::map<std::string, std::vector<int64_t>> samples;
  for (int64_t i = 0; i < sample_index.tasks.size(); ++i) {
    samples[get_task_name(sample_index.tasks[i])].push_back(i);
  }
  return samples;
}

/// Of each lane, in its order.
std::vector<double> match_shares(const TaskShares& change, const std::vector<MixtureSource>& sources) {
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
    const auto suggestion = find_nearest(task, names);
    errors.push_back(fmt::format("{}: is not a task of data.train; {}", task,
                                 suggestion ? fmt::format("did you mean {}?", *suggestion)
                                            : fmt::format("its tasks are {}", fmt::join(names, ", "))));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!shares[i]) errors.push_back(fmt::format("{0}: has no share; give it one, which may be 0", names[i]));
  }
  if (!errors.empty()) throw usage_error("data.task_shares:\n  {}", fmt::join(errors, "\n  "));
  std::vector<double> result;
  result.reserve(shares.size());
  for (const auto& share : shares) result.push_back(share.value_or(0));
  return result;
}

MixturePlan plan_by_task(const TaskShareSchedule& task_shares, const SampleIndex& sample_index) {
  MixturePlan plan;
  for (auto& [task, samples] : group_samples_by_task(sample_index)) {
    plan.sources.push_back({.name = task, .samples = std::move(samples)});
  }
  for (const TaskShares& change : task_shares.changes()) {
    plan.shares.push_back({.from_batch = change.from_step, .shares = match_shares(change, plan.sources)});
  }
  return plan;
}

std::vector<SampleSize> collect_sizes(const SampleIndex& sample_index) {
  std::vector<SampleSize> sizes(static_cast<size_t>(sample_index.shapes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (const auto shape = sample_index.shapes[static_cast<int64_t>(i)]) {
      sizes[i] = {.tokens = shape->tokens, .num_media = shape->num_media, .tiles = shape->pixel_rows};
    }
  }
  return sizes;
}

void check_mixture(const MixturePlan& plan, const SampleIndex& sample_index) {
  if (!sample_index.is_complete || plan.sources.size() == 1) return;
  for (const MixtureSource& mixture_source : plan.sources) {
    const bool has_usable =
        std::ranges::any_of(mixture_source.samples, [&](int64_t sample) { return sample_index.shapes.has(sample); });
    if (!has_usable) {
      throw data_error("{}: none of its {} samples can be used; take it out of data.train or data.task_shares",
                       mixture_source.name, mixture_source.samples.size());
    }
  }
}

}  // namespace

void reject_oversized_samples(const PackLimits& limits, SampleIndex& sample_index) {
  const auto sizes = collect_sizes(sample_index);
  for (int64_t i = 0; i < sample_index.shapes.size(); ++i) {
    const SampleSize& size = sizes[static_cast<size_t>(i)];
    if (!sample_index.shapes.has(i) || limits.fits(size)) continue;
    sample_index.shapes.remove(i);
    sample_index.shrunk.erase(i);
    sample_index.problems[i] = {
        .reason = "larger than a pack",
        .message = fmt::format(
            "sample {} has {} tokens, {} images and {} tiles, and a pack may have {} tokens, {} images{}; raise "
            "data.pack_max_tokens, data.pack_max_images or data.pack_max_tiles, or make it smaller with "
            "data.image_max_pixels",
            sample_index.ids[i], size.tokens, size.num_media, size.tiles, limits.tokens, limits.num_media,
            limits.tiles ? fmt::format(" and {} tiles", *limits.tiles) : "")};
  }
}

SampleOrder make_sample_order(const DataSet& data_set, const TaskShareSchedule& task_shares,
                              const SampleIndex& sample_index, OrderSettings settings) {
  const bool has_source_shares =
      std::ranges::any_of(data_set.sources(), [](const DataSet::SourceRecords& source_records) {
        return source_records.source.weight || source_records.source.repeat;
      });
  if (has_source_shares && !task_shares.empty()) {
    throw usage_error(
        "data.task_shares: the sources in data.train have weights or repeats too; keep the shares of one kind");
  }
  const bool needs_full_index = !task_shares.empty() || settings.packs || settings.curriculum != Curriculum::kNone;
  if (needs_full_index && !sample_index.is_complete) {
    throw usage_error(
        "data.check_at_start: is false, but data.packing, data.curriculum and data.task_shares go by what is found "
        "when "
        "all samples are looked at; set it to true");
  }
  MixturePlan plan = has_source_shares     ? plan_by_source(data_set)
                     : task_shares.empty() ? plan_single_source(data_set)
                                           : plan_by_task(task_shares, sample_index);
  check_mixture(plan, sample_index);
  std::vector<SampleSize> sizes;
  std::vector<char> is_packed;
  if (needs_full_index) sizes = collect_sizes(sample_index);
  if (settings.packs) {
    is_packed.resize(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      is_packed[i] = sample_index.shapes.has(static_cast<int64_t>(i)) && settings.packs->fits(sizes[i]) ? 1 : 0;
    }
  }
  return {std::move(plan.sources), std::move(plan.shares), std::move(settings),
          data_set.size(),         std::move(sizes),       std::move(is_packed)};
}

}  // namespace vlmtrain::data

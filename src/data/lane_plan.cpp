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

struct LanePlan {
  std::vector<Lane> lanes;
  std::vector<ShareChange> shares;
};

Lane lane_of_range(std::string name, int64_t begin, int64_t end) {
  Lane lane{.name = std::move(name), .samples = {}};
  lane.samples.reserve(static_cast<size_t>(end - begin));
  for (int64_t index = begin; index < end; ++index) lane.samples.push_back(index);
  return lane;
}

LanePlan one_lane(const DataSet& data_set) {
  return {.lanes = {lane_of_range("", 0, data_set.size())}, .shares = {{.from_batch = 0, .shares = {1}}}};
}

LanePlan lanes_of_sources(const DataSet& data_set) {
  LanePlan plan;
  std::vector<double> shares;
  for (size_t part = 0; part < data_set.parts().size(); ++part) {
    const Source& source = data_set.parts()[part].source;
    const auto [begin, end] = data_set.range_of(part);
    Lane& lane = plan.lanes.emplace_back(lane_of_range(source.path, begin, end));
    lane.repeat = source.repeat.value_or(1);
    shares.push_back(source.weight.value_or(lane.repeat * static_cast<double>(end - begin)));
  }
  plan.shares = {{.from_batch = 0, .shares = std::move(shares)}};
  return plan;
}

/// The tasks of a data set by name, each with its samples. Of samples that cannot be used the tasks count too: they are
/// passed over where they stand.
std::map<std::string, std::vector<int64_t>> samples_by_task(const Outlines& outlines) {
  std::map<std::string, std::vector<int64_t>> samples;
  for (int64_t i = 0; i < outlines.tasks.size(); ++i) {
    samples[name_of_task(outlines.tasks[i])].push_back(i);
  }
  return samples;
}

/// Of each lane, in its order.
std::vector<double> shares_of(const TaskShares& change, const std::vector<Lane>& lanes) {
  std::vector<std::string> names, errors;
  names.reserve(lanes.size());
  for (const Lane& lane : lanes) names.push_back(lane.name);
  std::vector<std::optional<double>> shares(lanes.size());
  for (const auto& [task, share] : change.shares) {
    const auto found = std::ranges::find(names, task);
    if (found != names.end()) {
      shares[static_cast<size_t>(found - names.begin())] = share;
      continue;
    }
    const auto near = nearest(task, names);
    errors.push_back(fmt::format(
        "{}: is not a task of data.train; {}", task,
        near ? fmt::format("did you mean {}?", *near) : fmt::format("its tasks are {}", fmt::join(names, ", "))));
  }
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (!shares[lane]) errors.push_back(fmt::format("{0}: has no share; give it one, which may be 0", names[lane]));
  }
  if (!errors.empty()) throw usage_error("data.task_shares:\n  {}", fmt::join(errors, "\n  "));
  std::vector<double> all;
  all.reserve(shares.size());
  for (const auto& share : shares) all.push_back(share.value_or(0));
  return all;
}

LanePlan lanes_of_tasks(const TaskShareSchedule& task_shares, const Outlines& outlines) {
  LanePlan plan;
  for (auto& [task, samples] : samples_by_task(outlines)) {
    plan.lanes.push_back({.name = task, .samples = std::move(samples)});
  }
  for (const TaskShares& change : task_shares.changes()) {
    plan.shares.push_back({.from_batch = change.from_step, .shares = shares_of(change, plan.lanes)});
  }
  return plan;
}

std::vector<SampleSize> sizes_of(const Outlines& outlines) {
  std::vector<SampleSize> sizes(static_cast<size_t>(outlines.shapes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (const auto shape = outlines.shapes[static_cast<int64_t>(i)]) {
      sizes[i] = {.tokens = shape->tokens, .images = shape->images, .tiles = shape->pixel_rows};
    }
  }
  return sizes;
}

void check_lanes(const LanePlan& plan, const Outlines& outlines) {
  if (!outlines.are_all || plan.lanes.size() == 1) return;
  for (const Lane& lane : plan.lanes) {
    const bool has_usable =
        std::ranges::any_of(lane.samples, [&](int64_t sample) { return outlines.shapes.has(sample); });
    if (!has_usable) {
      throw data_error("{}: none of its {} samples can be used; take it out of data.train or data.task_shares",
                       lane.name, lane.samples.size());
    }
  }
}

}  // namespace

void refuse_larger_than_packs(const PackLimits& limits, Outlines& outlines) {
  const auto sizes = sizes_of(outlines);
  for (int64_t i = 0; i < outlines.shapes.size(); ++i) {
    const SampleSize& size = sizes[static_cast<size_t>(i)];
    if (!outlines.shapes.has(i) || limits.holds(size)) continue;
    outlines.shapes.remove(i);
    outlines.shrunk.erase(i);
    outlines.problems[i] = {
        .reason = "larger than a pack",
        .message = fmt::format(
            "sample {} has {} tokens, {} images and {} tiles, and a pack may have {} tokens, {} images{}; raise "
            "data.pack_max_tokens, data.pack_max_images or data.pack_max_tiles, or make it smaller with "
            "data.image_max_pixels",
            outlines.ids[i], size.tokens, size.images, size.tiles, limits.tokens, limits.images,
            limits.tiles ? fmt::format(" and {} tiles", *limits.tiles) : "")};
  }
}

DrawOrder draw_order(const DataSet& data_set, const TaskShareSchedule& task_shares, const Outlines& outlines,
                     OrderSettings settings) {
  const bool of_sources = std::ranges::any_of(
      data_set.parts(), [](const DataSet::Part& part) { return part.source.weight || part.source.repeat; });
  if (of_sources && !task_shares.empty()) {
    throw usage_error(
        "data.task_shares: the sources in data.train have weights or repeats too; keep the shares of one kind");
  }
  const bool needs_all = !task_shares.empty() || settings.packs || settings.curriculum != Curriculum::kNone;
  if (needs_all && !outlines.are_all) {
    throw usage_error(
        "data.check_at_start: is false, but data.packing, data.curriculum and data.task_shares go by what is found "
        "when "
        "all samples are looked at; set it to true");
  }
  LanePlan plan = of_sources            ? lanes_of_sources(data_set)
                  : task_shares.empty() ? one_lane(data_set)
                                        : lanes_of_tasks(task_shares, outlines);
  check_lanes(plan, outlines);
  std::vector<SampleSize> sizes;
  std::vector<char> is_packed;
  if (needs_all) sizes = sizes_of(outlines);
  if (settings.packs) {
    is_packed.resize(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      is_packed[i] = outlines.shapes.has(static_cast<int64_t>(i)) && settings.packs->holds(sizes[i]) ? 1 : 0;
    }
  }
  return {std::move(plan.lanes), std::move(plan.shares), std::move(settings),
          data_set.size(),       std::move(sizes),       std::move(is_packed)};
}

}  // namespace vlmtrain::data

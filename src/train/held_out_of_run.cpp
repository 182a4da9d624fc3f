#include "train/held_out_of_run.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "train/run_setup.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/processor.h"

namespace vlmtrain::train {

namespace {

constexpr const char* kHeldOutFile = "held_out.json";
/// Contents that a run remembers which does not look at its data.
constexpr int64_t kMaxUncheckedContents = 256;

int64_t get_num_workers(const Config& config) {
  return std::max<int64_t>(config.data.num_workers, memory::default_threads());
}

nlohmann::ordered_json to_json(const data::HoldOutState& source_record) {
  auto contents = nlohmann::ordered_json::array();
  for (const auto& [index, content] : source_record.content_hashes) contents.push_back({index, content});
  return {{"path", source_record.path},   {"share", source_record.share},    {"samples", source_record.samples},
          {"stamp", source_record.stamp}, {"places", source_record.indices}, {"contents", std::move(contents)}};
}

/// What cannot be one was changed: places would be those of other samples.
bool is_valid(const data::HoldOutState& source_record) {
  const auto is_index = [&](int64_t index) { return index >= 0 && index < source_record.samples; };
  const auto is_entry = [&](const auto& entry) { return is_index(entry.first); };
  const bool is_ascending =
      std::ranges::adjacent_find(source_record.indices, std::ranges::greater_equal()) == source_record.indices.end();
  return source_record.share > 0 && source_record.share < 1 && is_ascending &&
         std::ranges::all_of(source_record.indices, is_index) &&
         std::ranges::all_of(source_record.content_hashes, is_entry);
}

data::HoldOutState parse_held_out_source(const nlohmann::json& json) {
  data::HoldOutState source_record{.path = json.at("path"),
                                   .share = json.at("share"),
                                   .samples = json.at("samples"),
                                   .stamp = json.at("stamp"),
                                   .indices = json.at("places"),
                                   .content_hashes = {}};
  for (const auto& entry : json.at("contents")) source_record.content_hashes.emplace_back(entry.at(0), entry.at(1));
  return source_record;
}

std::vector<data::HoldOutState> load_held_out_sources(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::vector<data::HoldOutState> source_records;
  try {
    const auto json = io::read_json(file);
    for (const auto& source : json.at("sources")) source_records.push_back(parse_held_out_source(source));
    if (std::ranges::all_of(source_records, is_valid)) return source_records;
  } catch (const nlohmann::json::exception&) {
  }
  throw data_error(
      "{}: is not what a run writes there, so which samples it holds out of training is not known; restore it, or move "
      "it away to draw them again",
      file.string());
}

std::optional<data::HoldOutState> find_held_out_source(const Config& config, const std::string& path) {
  if (config.output.dir.empty()) return std::nullopt;
  auto source_records = load_held_out_sources(std::filesystem::path(config.output.dir) / kHeldOutFile);
  for (auto& source_record : source_records) {
    if (source_record.path == path) return std::move(source_record);
  }
  return std::nullopt;
}

}  // namespace

data::HoldOutSplit split_source(const Config& config, const data::Source& source, const io::Records& records,
                                bool log_changes) {
  const double share = data::parse_hold_out_share(config.data).value_or(0);
  const auto seed = static_cast<uint64_t>(config.training.seed);
  const auto source_record = find_held_out_source(config, source.path);
  if (source_record && source_record->share == share) {
    auto restored = data::restore_hold_out(*source_record, records, seed, get_num_workers(config));
    if (log_changes && !restored.change.empty()) spdlog::info("data {}: {}", source.path, restored.change);
    return std::move(restored.split);
  }
  if (source_record && log_changes && share > source_record->share) {
    spdlog::warn("data {}: data.eval was {} and is {}, so samples are held out that the run may have trained on",
                 source.path, source_record->share, share);
  }
  return data::hold_out(records.size(), share, seed);
}

void save_held_out(const Config& config, const std::vector<SourceSplit>& sources) {
  const auto file = get_run_folder(config) / kHeldOutFile;
  const double share = data::parse_hold_out_share(config.data).value_or(0);
  auto json = nlohmann::ordered_json::array();
  bool has_changed = false;
  for (const auto& [path, records, indices] : sources) {
    const auto previous = find_held_out_source(config, path);
    data::HoldOutState current{.path = path,
                               .share = share,
                               .samples = records->size(),
                               .stamp = records->stamp(),
                               .indices = indices,
                               .content_hashes = {}};
    const bool is_same = previous && previous->share == share && previous->samples == current.samples &&
                         previous->stamp == current.stamp && previous->indices == current.indices &&
                         (previous->has_all_contents() || !config.data.check_at_start);
    if (is_same) {
      current.content_hashes = previous->content_hashes;
    } else {
      const int64_t max_contents =
          config.data.check_at_start ? std::numeric_limits<int64_t>::max() : kMaxUncheckedContents;
      data::store_content_hashes(current, *records, max_contents, get_num_workers(config));
      has_changed = true;
    }
    json.push_back(to_json(current));
  }
  if (has_changed)
    io::write_file(file, io::to_json_string(nlohmann::ordered_json{{"sources", std::move(json)}}) + "\n");
}

}  // namespace vlmtrain::train

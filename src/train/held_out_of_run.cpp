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
constexpr int64_t kFewContents = 256;

int64_t workers_for(const Config& config) {
  return std::max<int64_t>(config.data.num_workers, memory::default_threads());
}

nlohmann::ordered_json to_json(const data::HeldOutMemory& memory) {
  auto contents = nlohmann::ordered_json::array();
  for (const auto& [place, content] : memory.contents) contents.push_back({place, content});
  return {{"path", memory.path},   {"share", memory.share},   {"samples", memory.samples},
          {"stamp", memory.stamp}, {"places", memory.places}, {"contents", std::move(contents)}};
}

/// What cannot be one was changed: places would be those of other samples.
bool is_possible(const data::HeldOutMemory& memory) {
  const auto is_place = [&](int64_t place) { return place >= 0 && place < memory.samples; };
  const auto is_entry = [&](const auto& entry) { return is_place(entry.first); };
  const bool ascends = std::ranges::adjacent_find(memory.places, std::ranges::greater_equal()) == memory.places.end();
  return memory.share > 0 && memory.share < 1 && ascends && std::ranges::all_of(memory.places, is_place) &&
         std::ranges::all_of(memory.contents, is_entry);
}

data::HeldOutMemory memory_in(const nlohmann::json& json) {
  data::HeldOutMemory memory{.path = json.at("path"),
                             .share = json.at("share"),
                             .samples = json.at("samples"),
                             .stamp = json.at("stamp"),
                             .places = json.at("places"),
                             .contents = {}};
  for (const auto& entry : json.at("contents")) memory.contents.emplace_back(entry.at(0), entry.at(1));
  return memory;
}

std::vector<data::HeldOutMemory> memories_in(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::vector<data::HeldOutMemory> memories;
  try {
    const auto json = io::read_json(file);
    for (const auto& source : json.at("sources")) memories.push_back(memory_in(source));
    if (std::ranges::all_of(memories, is_possible)) return memories;
  } catch (const nlohmann::json::exception&) {
  }
  throw data_error(
      "{}: is not what a run writes there, so which samples it holds out of training is not known; restore it, or move "
      "it away to draw them again",
      file.string());
}

std::optional<data::HeldOutMemory> memory_of(const Config& config, const std::string& path) {
  if (config.output.dir.empty()) return std::nullopt;
  auto memories = memories_in(std::filesystem::path(config.output.dir) / kHeldOutFile);
  for (auto& memory : memories) {
    if (memory.path == path) return std::move(memory);
  }
  return std::nullopt;
}

}  // namespace

data::HeldOut divide_source(const Config& config, const data::Source& source, const io::Records& records, bool logs) {
  const double share = data::share_to_hold_out(config.data).value_or(0);
  const auto seed = static_cast<uint64_t>(config.training.seed);
  const auto memory = memory_of(config, source.path);
  if (memory && memory->share == share) {
    auto again = data::hold_out_again(*memory, records, seed, workers_for(config));
    if (logs && !again.change.empty()) spdlog::info("data {}: {}", source.path, again.change);
    return std::move(again.split);
  }
  if (memory && logs && share > memory->share) {
    spdlog::warn("data {}: data.eval was {} and is {}, so samples are held out that the run may have trained on",
                 source.path, memory->share, share);
  }
  return data::hold_out(records.size(), share, seed);
}

void remember_held_out(const Config& config, const std::vector<DividedSource>& sources) {
  const auto file = run_folder(config) / kHeldOutFile;
  const double share = data::share_to_hold_out(config.data).value_or(0);
  auto json = nlohmann::ordered_json::array();
  bool is_news = false;
  for (const auto& [path, records, places] : sources) {
    const auto before = memory_of(config, path);
    data::HeldOutMemory now{.path = path,
                            .share = share,
                            .samples = records->size(),
                            .stamp = records->stamp(),
                            .places = places,
                            .contents = {}};
    const bool is_same = before && before->share == share && before->samples == now.samples &&
                         before->stamp == now.stamp && before->places == now.places &&
                         (before->knows_all() || !config.data.check_at_start);
    if (is_same) {
      now.contents = before->contents;
    } else {
      const int64_t most = config.data.check_at_start ? std::numeric_limits<int64_t>::max() : kFewContents;
      data::remember_contents(now, *records, most, workers_for(config));
      is_news = true;
    }
    json.push_back(to_json(now));
  }
  if (is_news) io::write_file(file, io::json_text(nlohmann::ordered_json{{"sources", std::move(json)}}) + "\n");
}

}  // namespace vlmtrain::train

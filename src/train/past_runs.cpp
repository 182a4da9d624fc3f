#include "vlmtrain/train/past_runs.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/host_name.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/today.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file_lock.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/libtorch.h"
#include "vlmtrain/memory/processor.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMostPlaces = 64;
constexpr uintmax_t kLargestFile = 1 << 20;
constexpr size_t kLongestWord = 256;
constexpr int64_t kMostRuns = 1'000'000'000;
constexpr int64_t kLargestContext = int64_t{64} << 30;
constexpr double kMostRatio = 1000;
constexpr std::chrono::milliseconds kPatience{1000};

struct Entry {
  RunPlace place;
  PastRuns past;
};

UserError damaged(const std::filesystem::path& file, const std::string& what) {
  return data_error("{}: {}", file.string(), what);
}

/// Numbers that no run measures would make plans that nobody can follow.
Entry read_entry(const nlohmann::json& json, const std::filesystem::path& file) {
  const std::string source = file.string();
  const auto word = [&](const char* key) {
    auto text = io::get<std::string>(json, key, source);
    if (text.size() > kLongestWord) throw damaged(file, fmt::format("{} is longer than any name", key));
    return text;
  };
  const auto number = [&]<class Number>(const char* key, Number least, Number most) -> std::optional<Number> {
    if (!json.contains(key) || json[key].is_null()) return std::nullopt;
    const auto value = io::get<Number>(json, key, source);
    if (!(value >= least && value <= most)) throw damaged(file, fmt::format("{} is {}", key, value));
    return value;
  };
  Entry entry{.place = {word("device"), word("driver"), word("libtorch"), word("host")}, .past = {}};
  entry.past.runs = number("runs", int64_t{1}, kMostRuns).value_or(1);
  entry.past.last = word("last");
  entry.past.context_bytes = number("context_bytes", int64_t{1}, kLargestContext);
  entry.past.step_time_ratio = number("step_time_ratio", 1 / kMostRatio, kMostRatio);
  entry.past.peak_ratio = number("peak_ratio", 1 / kMostRatio, kMostRatio);
  return entry;
}

std::vector<Entry> read_entries(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) throw damaged(file, "is no file");
  if (std::filesystem::file_size(file) > kLargestFile) throw damaged(file, "is larger than what runs write");
  const auto json = io::read_json(file);
  const std::string source = file.string();
  if (const auto version = io::get<int64_t>(json, "version", source); version != kVersion) {
    throw damaged(file, fmt::format("is of version {}, and this program knows {}", version, kVersion));
  }
  if (!json.contains("places") || !json["places"].is_array() || json["places"].size() > kMostPlaces) {
    throw damaged(file, "has no list of at most 64 places");
  }
  std::vector<Entry> entries;
  entries.reserve(json["places"].size() + 1);
  for (const auto& place : json["places"]) entries.push_back(read_entry(place, file));
  return entries;
}

/// What is there, or nothing, with a line that says why.
std::vector<Entry> entries_or_none(const std::filesystem::path& file) {
  try {
    return read_entries(file);
  } catch (const std::exception& error) {
    spdlog::warn("what earlier runs measured is not used: {}; VLMTRAIN_PAST_RUNS=off leaves it alone",
                 printable(error.what()));
    return {};
  }
}

std::string text_of(const std::vector<Entry>& entries) {
  auto places = nlohmann::ordered_json::array();
  for (const auto& [place, past] : entries) {
    nlohmann::ordered_json json{
        {"device", place.device}, {"driver", place.driver}, {"libtorch", place.libtorch}, {"host", place.host}};
    json.update(past.to_json());
    places.push_back(std::move(json));
  }
  return io::json_text(nlohmann::ordered_json{{"version", kVersion}, {"places", places}}, 2) + "\n";
}

/// One process at a time changes the file; the lock goes with the object, or with the process.
class Turn {
 public:
  explicit Turn(const std::filesystem::path& file)
      : descriptor_(
            open((file.string() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    constexpr std::chrono::milliseconds kPause{20};
    while (descriptor_ >= 0 && io::lock_file(descriptor_) != 0) {
      if (std::chrono::steady_clock::now() > end) return;
      std::this_thread::sleep_for(kPause);
    }
    is_mine_ = descriptor_ >= 0;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  bool is_mine() const { return is_mine_; }

 private:
  int descriptor_;
  bool is_mine_ = false;
};

/// The larger; nothing only where both are.
template <class Number>
std::optional<Number> larger(const std::optional<Number>& left, const std::optional<Number>& right) {
  return left && right ? std::max(left, right) : left ? left : right;
}

void slow_down(planner::Option& option, double ratio) {
  option.step_seconds *= ratio;
  option.tokens_per_second /= ratio;
}

}  // namespace

RunPlace place_of_card(const std::string& device_name) {
  return {.device = device_name,
          .driver = memory::module_version(),
          .libtorch = memory::libtorch().compiled_for,
          .host = host_name()};
}

RunPlace place_of_processor() {
  return {.device = memory::processor().model,
          .driver = "",
          .libtorch = memory::libtorch().compiled_for,
          .host = host_name()};
}

PastRuns PastRuns::with(const PastRuns& newest) const {
  PastRuns both{.runs = std::min(kMostRuns, runs + newest.runs),
                .last = newest.last,
                .context_bytes = larger(context_bytes, newest.context_bytes),
                .step_time_ratio = newest.step_time_ratio ? newest.step_time_ratio : step_time_ratio,
                .peak_ratio = larger(peak_ratio, newest.peak_ratio)};
  if (step_time_ratio && newest.step_time_ratio) {
    both.step_time_ratio = std::sqrt(*step_time_ratio * *newest.step_time_ratio);
  }
  return both;
}

nlohmann::ordered_json PastRuns::to_json() const {
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  return {{"runs", runs},
          {"last", last},
          {"context_bytes", or_null(context_bytes)},
          {"step_time_ratio", or_null(step_time_ratio)},
          {"peak_ratio", or_null(peak_ratio)}};
}

std::string PastRuns::words() const {
  std::string text = fmt::format("{} on this machine, the last on {}", runs == 1 ? "one run" : grouped(runs) + " runs",
                                 printable(last));
  if (context_bytes) {
    text += fmt::format("; CUDA took {:.2f} GB beside PyTorch's memory, which is counted here",
                        in_gigabytes(*context_bytes));
  }
  if (step_time_ratio) {
    text += fmt::format("; steps took {:.3g} times what operations and data sheets say, and so do those predicted here",
                        *step_time_ratio);
  }
  if (peak_ratio) text += fmt::format("; memory peaked at {:.1f} % of what was planned at most", 100 * *peak_ratio);
  return text;
}

std::filesystem::path past_runs_file() {
  const auto variable = [](const char* name) -> std::string_view {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  const auto own = variable("VLMTRAIN_PAST_RUNS");
  if (own == "off") return {};
  if (!own.empty()) return own;
  constexpr const char* kFile = "vlmtrain/past_runs.json";
  // The XDG Base Directory Specification: a path that is not absolute is passed over.
  if (const std::filesystem::path state = variable("XDG_STATE_HOME"); state.is_absolute()) return state / kFile;
  if (const std::filesystem::path home = variable("HOME"); home.is_absolute()) return home / ".local/state" / kFile;
  return {};
}

std::optional<PastRuns> past_runs(const std::filesystem::path& file, const RunPlace& place) {
  if (file.empty() || place.device.empty()) return std::nullopt;
  for (const auto& entry : entries_or_none(file)) {
    if (entry.place == place) return entry.past;
  }
  return std::nullopt;
}

void remember_run(const std::filesystem::path& file, const RunPlace& place, const PastRuns& measured) {
  if (file.empty() || place.device.empty()) return;
  try {
    if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
    const Turn turn(file);
    if (!turn.is_mine()) throw run_error("{} cannot be locked", file.string() + ".lock");
    auto entries = entries_or_none(file);
    Entry newest{place, measured};
    newest.past.last = today();
    const auto known = std::ranges::find(entries, place, &Entry::place);
    if (known != entries.end()) {
      newest.past = known->past.with(newest.past);
      entries.erase(known);
    }
    if (entries.size() >= kMostPlaces) entries.erase(entries.begin());
    entries.push_back(std::move(newest));
    io::write_file(file, text_of(entries));
  } catch (const std::exception& error) {
    spdlog::info("what this run measured is not kept for later plans: {}; VLMTRAIN_PAST_RUNS says where it goes",
                 printable(error.what()));
  }
}

void learn(planner::TargetCard& card, const PastRuns& past) {
  if (!past.context_bytes) return;
  card.context_bytes = card.context_measured ? std::max(card.context_bytes, *past.context_bytes) : *past.context_bytes;
  card.context_measured = true;
}

void learn(planner::Plan& plan, const PastRuns& past) {
  if (!past.step_time_ratio) return;
  slow_down(plan.chosen, *past.step_time_ratio);
  for (auto& option : plan.alternatives) slow_down(option, *past.step_time_ratio);
  if (!plan.average) return;
  plan.average->step_seconds *= *past.step_time_ratio;
  plan.average->tokens_per_second /= *past.step_time_ratio;
  plan.average->samples_per_second /= *past.step_time_ratio;
}

void learn(std::vector<planner::Rung>& rungs, const PastRuns& past) {
  if (!past.step_time_ratio) return;
  for (auto& rung : rungs) {
    slow_down(rung.single, *past.step_time_ratio);
    if (rung.planned) slow_down(*rung.planned, *past.step_time_ratio);
  }
}

}  // namespace vlmtrain::train

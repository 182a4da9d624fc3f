#include "report/run_events.h"

#include <algorithm>
#include <vector>

#include "report/json_value.h"

namespace vlmtrain::report {

namespace {

constexpr size_t kMostOfAKind = 40;
constexpr size_t kMostKinds = 40;
constexpr size_t kMostIds = 8;
constexpr size_t kLongestMessage = 600;

}  // namespace

void RunEvents::add(const nlohmann::json& line) {
  const std::string kind = text_in(line, "kind");
  if (kind.empty()) return;
  const int64_t step = count_in(line, "step");
  const double time = number_in(line, "time");
  if (time > last_time_) last_time_ = time;
  const std::string message = shortened(text_in(line, "message"), kLongestMessage);
  if (kind == "stopped" || kind == "failed") {
    ending_ = kind;
    ending_step_ = step;
    ending_message_ = message;
  } else if (kind == "resumed") {
    ending_.clear();
  }
  if (counts_.size() >= kMostKinds && !counts_.contains(kind)) return;
  ++counts_[kind];

  auto ids = nlohmann::json::array();
  size_t more = 0;
  if (const auto found = line.find("ids"); found != line.end() && found->is_array()) {
    for (const auto& id : *found) {
      if (id.is_string() && ids.size() < kMostIds) ids.push_back(shortened(id.get<std::string>(), kLongestMessage));
    }
    more = found->size() - ids.size();
  }
  auto& events = newest_[kind];
  events.push_back({{"number", number_++},
                    {"step", step},
                    {"time", time},
                    {"kind", kind},
                    {"message", message},
                    {"ids", std::move(ids)},
                    {"more_ids", more}});
  if (events.size() > kMostOfAKind) events.pop_front();
}

nlohmann::json RunEvents::to_json() const {
  std::vector<const nlohmann::json*> events;
  for (const auto& [kind, newest] : newest_) {
    for (const auto& event : newest) events.push_back(&event);
  }
  std::sort(events.begin(), events.end(), [](const auto* a, const auto* b) { return (*a)["number"] > (*b)["number"]; });
  auto shown = nlohmann::json::array();
  for (const auto* event : events) shown.push_back(*event);
  return {{"counts", counts_}, {"shown", std::move(shown)}};
}

}  // namespace vlmtrain::report

#include "report/run/run_events.h"

#include <algorithm>
#include <vector>

#include "report/format/json_fields.h"

namespace vlmtrain::report {

namespace {

constexpr size_t kMaxEventsPerKind = 40;
constexpr size_t kMaxEventKinds = 40;
constexpr size_t kMaxIds = 8;
constexpr size_t kMaxMessageBytes = 600;

}  // namespace

void RunEvents::add(const nlohmann::json& line) {
  const std::string kind = get_text(line, "kind");
  if (kind.empty()) return;
  const int64_t step = get_count(line, "step");
  const double time = get_number(line, "time");
  if (time > last_time_) last_time_ = time;
  const std::string message = truncate_utf8(get_text(line, "message"), kMaxMessageBytes);
  if (kind == "stopped" || kind == "failed") {
    end_state_ = kind;
    end_step_ = step;
    end_message_ = message;
  } else if (kind == "resumed") {
    end_state_.clear();
  }
  if (counts_.size() >= kMaxEventKinds && !counts_.contains(kind)) return;
  ++counts_[kind];

  auto ids = nlohmann::json::array();
  size_t num_more = 0;
  if (const auto ids_entry = line.find("ids"); ids_entry != line.end() && ids_entry->is_array()) {
    for (const auto& id : *ids_entry) {
      if (id.is_string() && ids.size() < kMaxIds) ids.push_back(truncate_utf8(id.get<std::string>(), kMaxMessageBytes));
    }
    num_more = ids_entry->size() - ids.size();
  }
  auto& events = newest_[kind];
  events.push_back({{"number", number_++},
                    {"step", step},
                    {"time", time},
                    {"kind", kind},
                    {"message", message},
                    {"ids", std::move(ids)},
                    {"more_ids", num_more}});
  if (events.size() > kMaxEventsPerKind) events.pop_front();
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

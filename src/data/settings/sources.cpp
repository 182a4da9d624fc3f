#include "vlmtrain/data/sources.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "vlmtrain/base/options.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::data {

namespace {

using Json = nlohmann::ordered_json;
using ParseErrorMessage = std::optional<std::string>;

/// Maximum of weights, repeats and shares, so that the sum over any number of sources is finite.
constexpr double kMaxShare = 1e15;

/// Returns whether the number is a valid share; false for NaN.
bool is_valid_share(double number) {
  return number >= 0 && number <= kMaxShare;
}

/// Sets a text field of a source. Returns an error message if the value is not a non-empty string.
ParseErrorMessage parse_nonempty_string(const Json& value, const std::string& key, std::string& text) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return fmt::format("{} of a source must be a string, not {}", key, make_excerpt(value.dump()));
  }
  text = value.get<std::string>();
  if (text.find('\0') != std::string::npos) return fmt::format("{} of a source contains a NUL character", key);
  return std::nullopt;
}

ParseErrorMessage parse_positive_number(const Json& value, const std::string& key, std::optional<double>& number) {
  if (!value.is_number() || !is_valid_share(value.get<double>()) || value.get<double>() == 0) {
    return fmt::format("{} of a source must be a number greater than 0 and at most {:g}, not {}", key, kMaxShare,
                       value.is_number_float() ? fmt::format("{}", value.get<double>()) : make_excerpt(value.dump()));
  }
  number = value.get<double>();
  return std::nullopt;
}

ParseErrorMessage parse_source_field(const std::string& key, const Json& value, Source& source) {
  static const std::vector<std::string> kSourceKeys{"path", "weight", "repeat", "task", "image_root"};
  if (key == "path") return parse_nonempty_string(value, key, source.path);
  if (key == "weight") return parse_positive_number(value, key, source.weight);
  if (key == "repeat") return parse_positive_number(value, key, source.repeat);
  if (key == "task") return parse_nonempty_string(value, key, source.task);
  if (key == "image_root") return parse_nonempty_string(value, key, source.image_root);
  const auto suggestion = find_nearest_word(key, kSourceKeys);
  return fmt::format("a source has no key {}; {}", make_excerpt(key),
                     suggestion ? fmt::format("did you mean {}?", *suggestion)
                                : "its keys are path, weight, repeat, task, image_root");
}

/// Parses a path or an object with the keys of a source. Returns an error message if the value is
/// invalid.
ParseErrorMessage parse_source(const Json& value, Source& source) {
  if (value.is_string()) return parse_nonempty_string(value, "path", source.path);
  if (!value.is_object()) {
    return fmt::format(
        "a source is a path or an object with the keys path, weight or repeat, task and image_root, not {}",
        make_excerpt(value.dump()));
  }
  for (const auto& [key, item] : value.items()) {
    if (auto error = parse_source_field(key, item, source)) return error;
  }
  if (source.path.empty()) return "a source has no path";
  if (source.weight && source.repeat) return fmt::format("{} has both weight and repeat; keep one", source.path);
  return std::nullopt;
}

/// Parses "name=share". Returns nothing for other texts.
std::optional<std::pair<std::string, double>> parse_task_share(const std::string& entry) {
  const auto equals_position = entry.rfind('=');
  if (equals_position == std::string::npos) return std::nullopt;
  const std::string_view text = std::string_view(entry).substr(equals_position + 1);
  double share = 0;
  const auto [end, parse_status] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (parse_status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::pair{entry.substr(0, equals_position), share};
}

/// Parses {task: share, …} or ["task=share", …]. Returns an error message if the value is invalid.
ParseErrorMessage parse_task_shares(const Json& value, TaskShares& shares) {
  const auto add = [&shares](const std::string& task, double share) -> ParseErrorMessage {
    if (!is_valid_share(share))
      return fmt::format("{} has a share of {}; shares are numbers from 0 to {:g}", make_excerpt(task), share,
                         kMaxShare);
    if (std::ranges::find(shares.shares, task, &std::pair<std::string, double>::first) != shares.shares.end()) {
      return fmt::format("{} is given twice; keep one", make_excerpt(task));
    }
    shares.shares.emplace_back(task, share);
    return std::nullopt;
  };
  if (value.is_object()) {
    for (const auto& [task, share] : value.items()) {
      if (!share.is_number())
        return fmt::format("{} has a share of {}, which is not a number", make_excerpt(task),
                           make_excerpt(share.dump()));
      if (auto error = add(task, share.get<double>())) return error;
    }
  } else {
    for (const auto& entry : value) {
      const auto share = entry.is_string() ? parse_task_share(entry.get<std::string>()) : std::nullopt;
      if (!share)
        return fmt::format("{} does not have the form task=share, such as caption=0.25", make_excerpt(entry.dump()));
      if (auto error = add(share->first, share->second)) return error;
    }
  }
  const bool has_positive_share =
      std::ranges::any_of(shares.shares, [](const auto& share) { return share.second > 0; });
  return has_positive_share ? ParseErrorMessage() : "no task has a share above 0";
}

Json task_shares_to_json(const TaskShares& shares) {
  Json json = Json::object();
  for (const auto& [task, share] : shares.shares) json[task] = share;
  return json;
}

}  // namespace

SourceList::SourceList(const std::string& path) {
  if (!path.empty()) sources_.push_back({.path = path, .task = {}, .image_root = {}});
}

bool SourceList::has_weights_or_repeats() const {
  return std::ranges::any_of(sources_, [](const Source& source) { return source.weight || source.repeat; });
}

std::string SourceList::name() const {
  if (sources_.empty()) return {};
  const std::string& first = sources_.front().path;
  if (sources_.size() == 1) return first;
  return fmt::format("{} and {}", first, pluralize(std::ssize(sources_) - 1, "more source"));
}

Json SourceList::to_json() const {
  if (sources_.empty()) return "";
  Json list = Json::array();
  for (const Source& source : sources_) {
    Json json{{"path", source.path}};
    if (source.weight) json["weight"] = *source.weight;
    if (source.repeat) json["repeat"] = *source.repeat;
    if (!source.task.empty()) json["task"] = source.task;
    if (!source.image_root.empty()) json["image_root"] = source.image_root;
    list.push_back(json.size() == 1 ? Json(source.path) : json);
  }
  return list.size() == 1 && list[0].is_string() ? list[0] : list;
}

ParseErrorMessage SourceList::set(const Json& value) {
  std::vector<Source> sources;
  const bool is_single_source = value.is_string() || value.is_object();
  if (!is_single_source && !value.is_array() && !value.is_null()) {
    // YAML reads file names such as 2024 or true as a number or boolean.
    if (value.is_number() || value.is_boolean()) return set(value.dump());
    return "must be a path, or a list of sources";
  }
  if (!(value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()))) {
    for (const auto& item : is_single_source ? Json::array({value}) : value) {
      if (auto error = parse_source(item, sources.emplace_back())) return error;
    }
  }
  const auto num_weighted_sources =
      std::ranges::count_if(sources, [](const Source& source) { return source.weight.has_value(); });
  if (num_weighted_sources != 0 && num_weighted_sources != std::ssize(sources)) {
    return "only some sources have a weight; add a weight to each source, or use repeat";
  }
  sources_ = std::move(sources);
  return std::nullopt;
}

Json TaskShareSchedule::to_json() const {
  if (share_changes_.size() == 1) return task_shares_to_json(share_changes_.front());
  Json list = Json::array();
  for (const auto& change : share_changes_)
    list.push_back({{"step", change.first_step}, {"shares", task_shares_to_json(change)}});
  return list;
}

ParseErrorMessage TaskShareSchedule::set(const Json& value) {
  std::vector<TaskShares> changes;
  const bool is_schedule = value.is_array() && !value.empty() && value.front().is_object();
  if (is_schedule) {
    for (const auto& item : value) {
      const bool is_valid_change =
          item.is_object() && item.size() == 2 && item.contains("step") && item.contains("shares");
      if (!is_valid_change || !item["step"].is_number_integer() || !item["shares"].is_structured()) {
        return fmt::format("a change of shares has the form {{step: 1000, shares: {{caption: 1}}}}, not {}",
                           make_excerpt(item.dump()));
      }
      TaskShares& change = changes.emplace_back(TaskShares{.first_step = item["step"].get<int64_t>(), .shares = {}});
      const bool is_ascending =
          changes.size() == 1 ? change.first_step == 0 : change.first_step > changes[changes.size() - 2].first_step;
      if (!is_ascending) return "the steps of task shares must ascend, and the first must be 0";
      if (auto error = parse_task_shares(item["shares"], change)) return error;
    }
  } else if (value.is_structured() && !value.empty()) {
    if (auto error = parse_task_shares(value, changes.emplace_back())) return error;
  } else if (!value.is_null() && !(value.is_structured() && value.empty()) &&
             !(value.is_string() && value.get_ref<const std::string&>().empty())) {
    return "must be tasks with their shares, such as {caption: 0.25, vqa: 0.75}";
  }
  share_changes_ = std::move(changes);
  return std::nullopt;
}

}  // namespace vlmtrain::data

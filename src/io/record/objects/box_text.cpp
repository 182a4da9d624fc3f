#include "io/record/objects/box_text.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {
namespace {

/// Steps of one search. The default pattern needs some ten steps per bracket of a text.
constexpr uint32_t kMaxSearchSteps = 1'000'000;

Regex compile_pattern(const std::string& pattern) {
  try {
    return Regex(pattern, {.max_steps = kMaxSearchSteps});
  } catch (const RegexError& error) {
    throw usage_error("{}: {} is an invalid regular expression ({}); correct it", keys::data::kBoxesPattern,
                      make_excerpt(pattern), error.what());
  }
}

/// Returns the groups of the coordinates: named groups, else the groups in their order.
std::vector<size_t> find_coordinate_groups(const Regex& pattern) {
  for (const auto& names : {std::vector<const char*>{"x1", "y1", "x2", "y2"}, std::vector<const char*>{"x", "y"}}) {
    std::vector<size_t> groups;
    for (const char* name : names) {
      if (const auto group = pattern.find_group(name)) groups.push_back(*group);
    }
    if (groups.size() == names.size() && groups.size() == pattern.num_named_groups()) return groups;
  }
  if (pattern.num_named_groups() > 0)
    throw usage_error("{}: name its groups x1, y1, x2 and y2, or x and y, or give none a name",
                      keys::data::kBoxesPattern);
  const size_t count = pattern.num_groups();
  if (count == 2) return {1, 2};
  if (count == 4) return {1, 2, 3, 4};
  throw usage_error(
      "{} has {} groups; write one group per number, x1, y1, x2, y2 of a box or x, y of a point, or name them so: "
      "(?<x1>\\d+)",
      keys::data::kBoxesPattern, count);
}

/// Returns the number in `text`. Throws UserError (kBadData) for another text.
double parse_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  throw data_error("{} matches \"{}\" as a coordinate, which is not a number; correct the pattern",
                   keys::data::kBoxesPattern, make_excerpt(text));
}

/// Returns the index of the last image before an offset of a turn: `num_images_before`, the images
/// of earlier turns, and the turn's own `placeholders`.
int64_t find_image_index(int64_t num_images_before, const std::vector<MediaPlaceholder>& placeholders, size_t offset) {
  const auto num_images = std::ranges::count_if(
      placeholders, [&](const MediaPlaceholder& medium) { return !medium.is_video && medium.begin < offset; });
  return std::max<int64_t>(num_images_before + num_images - 1, 0);
}

}  // namespace

BoxTextFinder::BoxTextFinder(const BoxSettings& settings) : unit_(settings.unit) {
  if (!unit_) {
    if (settings.pattern.empty()) return;
    throw usage_error("{} needs {}, the unit of the coordinates: absolute, normalized_1 or normalized_1000",
                      keys::data::kBoxesPattern, keys::data::kBoxesIn);
  }
  pattern_ = compile_pattern(settings.pattern.empty() ? kDefaultBoxPattern : settings.pattern);
  groups_ = find_coordinate_groups(*pattern_);
}

void BoxTextFinder::add_objects(Record& record) const {
  if (!pattern_ || (record.images.empty() && record.videos.empty())) return;
  const auto search = [&](std::string_view text, size_t offset) {
    try {
      return pattern_->search(text, offset);
    } catch (const RegexError& error) {
      throw data_error("{} takes too long on its text {} ({}); simplify the pattern", keys::data::kBoxesPattern,
                       make_excerpt(text), error.what());
    }
  };
  int64_t num_images = 0;
  for (size_t turn = 0; turn < record.turns.size(); ++turn) {
    const Turn& current = record.turns[turn];
    const std::vector<MediaPlaceholder> placeholders = find_placeholders(current);
    size_t end = 0;
    for (auto match = search(current.text, end); match; match = search(current.text, end)) {
      const Regex::Group whole = *match->front();
      end = std::max(whole.end, end + 1);
      if (record.images.empty()) {
        throw data_error("turn {} has coordinates of a video, which are not supported; unset {}", turn + 1,
                         keys::data::kBoxesIn);
      }
      ObjectMark object{.turn_index = turn,
                        .range = {.begin = whole.begin, .end = whole.end},
                        .unit = *unit_,
                        .image_index = find_image_index(num_images, placeholders, whole.begin)};
      for (const size_t group : groups_) {
        if (!(*match)[group]) continue;
        const auto [begin, group_end] = *(*match)[group];
        if (begin < whole.begin || group_end > whole.end) {
          throw data_error("{} has a group outside of its match, at \"{}\"; write no groups into lookarounds",
                           keys::data::kBoxesPattern,
                           make_excerpt(std::string_view(current.text).substr(begin, group_end - begin)));
        }
        object.coordinates.push_back(parse_number(std::string_view(current.text).substr(begin, group_end - begin)));
        object.number_ranges.push_back({.begin = begin, .end = group_end});
      }
      if (object.coordinates.size() != groups_.size()) {
        throw data_error("{} matches {} without all of its groups; correct the pattern", keys::data::kBoxesPattern,
                         make_excerpt(std::string_view(current.text).substr(whole.begin, whole.end - whole.begin)));
      }
      record.objects.push_back(std::move(object));
      if (end > current.text.size()) break;
    }
    for (const TemplateValue& field : current.fields) {
      if (!search(field.json, 0)) continue;
      throw data_error(
          "turn {} has coordinates in \"{}\", where they are not rewritten; unset {} to train on the numbers as they "
          "are",
          turn + 1, field.name, keys::data::kBoxesIn);
    }
    num_images += std::ranges::count(placeholders, false, &MediaPlaceholder::is_video);
  }
}

}  // namespace vlmtrain::io

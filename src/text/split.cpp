#include "text/split.h"

#include <algorithm>
#include <array>
#include <utility>

namespace vlmtrain::text {
namespace {

struct TextSegment {
  Range range;
  bool is_match;
};

/// Covers [0, size) with matches and what lies between them.
void split_at_matches(const std::vector<Range>& matches, size_t size, bool invert, std::vector<TextSegment>& segments) {
  size_t covered_end = 0;
  for (const Range& match : matches) {
    if (match.begin > covered_end) segments.push_back({{covered_end, match.begin}, invert});
    segments.push_back({match, !invert});
    covered_end = match.end;
  }
  if (size > covered_end) segments.push_back({{covered_end, size}, invert});
}

void remove_matches(std::vector<TextSegment>& segments) {
  std::erase_if(segments, [](const TextSegment& segment) { return segment.is_match; });
}

/// Joins each stretch for which `joins(previous, it)` holds to the piece before it.
template <class Predicate>
void merge_segments(std::vector<TextSegment>& segments, Predicate should_join) {
  std::vector<TextSegment> merged;
  bool previous_is_match = false;
  for (const TextSegment& segment : segments) {
    if (!merged.empty() && should_join(previous_is_match, segment.is_match)) {
      merged.back().range.end = segment.range.end;
    } else {
      merged.push_back(segment);
    }
    previous_is_match = segment.is_match;
  }
  segments = std::move(merged);
}

/// Joins a match to the piece after it; of several matches that touch, only the last.
void merge_matches_forward(std::vector<TextSegment>& segments) {
  std::vector<TextSegment> merged;
  for (size_t i = 0; i < segments.size(); ++i) {
    TextSegment segment = segments[i];
    const bool next_is_gap = i + 1 < segments.size() && !segments[i + 1].is_match;
    if (segment.is_match && next_is_gap) segment.range.end = segments[++i].range.end;
    merged.push_back(segment);
  }
  segments = std::move(merged);
}

void apply_behavior(std::vector<TextSegment>& segments, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      remove_matches(segments);
      break;
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kMergedWithPrevious:
      merge_segments(segments, [](bool previous_is_match, bool is_match) { return is_match && !previous_is_match; });
      break;
    case SplitBehavior::kMergedWithNext:
      merge_matches_forward(segments);
      break;
    case SplitBehavior::kContiguous:
      merge_segments(segments, [](bool previous_is_match, bool is_match) { return is_match == previous_is_match; });
      break;
  }
}

}  // namespace

SplitBehavior parse_split_behavior(const JsonNode& node) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames{{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string name = node.string();
  for (const auto& [behavior_name, behavior] : kNames) {
    if (name == behavior_name) return behavior;
  }
  throw node.error(
      "is \"{}\", which is not supported; supported are Removed, Isolated, MergedWithPrevious, MergedWithNext, "
      "Contiguous",
      name);
}

void split_pieces(PreTokenized& text, const Pattern& pattern, SplitBehavior behavior, bool invert) {
  std::vector<Range> pieces;
  std::vector<Range> matches;
  std::vector<TextSegment> segments;
  for (const Range& piece : text.pieces) {
    matches.clear();
    segments.clear();
    const size_t size = piece.end - piece.begin;
    pattern.find_all(std::string_view(text.text.bytes).substr(piece.begin, size), matches);
    split_at_matches(matches, size, invert, segments);
    apply_behavior(segments, behavior);
    for (const TextSegment& segment : segments) {
      pieces.push_back({piece.begin + segment.range.begin, piece.begin + segment.range.end});
    }
  }
  text.pieces = std::move(pieces);
}

}  // namespace vlmtrain::text

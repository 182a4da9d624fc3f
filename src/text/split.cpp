#include "text/split.h"

#include <algorithm>
#include <array>
#include <utility>

namespace vlmtrain::text {
namespace {

struct Stretch {
  Range range;
  bool is_match;
};

/// Covers [0, size) with matches and what lies between them.
void cover(const std::vector<Range>& matches, size_t size, bool invert, std::vector<Stretch>& stretches) {
  size_t done = 0;
  for (const Range& match : matches) {
    if (match.begin > done) stretches.push_back({{done, match.begin}, invert});
    stretches.push_back({match, !invert});
    done = match.end;
  }
  if (size > done) stretches.push_back({{done, size}, invert});
}

void keep_only_gaps(std::vector<Stretch>& stretches) {
  std::erase_if(stretches, [](const Stretch& stretch) { return stretch.is_match; });
}

/// Joins each stretch for which `joins(previous, it)` holds to the piece before it.
template <class Joins>
void join(std::vector<Stretch>& stretches, Joins joins) {
  std::vector<Stretch> joined;
  bool previous_is_match = false;
  for (const Stretch& stretch : stretches) {
    if (!joined.empty() && joins(previous_is_match, stretch.is_match)) {
      joined.back().range.end = stretch.range.end;
    } else {
      joined.push_back(stretch);
    }
    previous_is_match = stretch.is_match;
  }
  stretches = std::move(joined);
}

/// Joins a match to the piece after it; of several matches that touch, only the last.
void join_with_next(std::vector<Stretch>& stretches) {
  std::vector<Stretch> joined;
  for (size_t i = 0; i < stretches.size(); ++i) {
    Stretch stretch = stretches[i];
    const bool next_is_gap = i + 1 < stretches.size() && !stretches[i + 1].is_match;
    if (stretch.is_match && next_is_gap) stretch.range.end = stretches[++i].range.end;
    joined.push_back(stretch);
  }
  stretches = std::move(joined);
}

void rearrange(std::vector<Stretch>& stretches, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      keep_only_gaps(stretches);
      break;
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kMergedWithPrevious:
      join(stretches, [](bool previous, bool it) { return it && !previous; });
      break;
    case SplitBehavior::kMergedWithNext:
      join_with_next(stretches);
      break;
    case SplitBehavior::kContiguous:
      join(stretches, [](bool previous, bool it) { return it == previous; });
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
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  throw node.error(
      "is \"{}\", which is not supported; supported are Removed, Isolated, MergedWithPrevious, MergedWithNext, "
      "Contiguous",
      name);
}

void split_pieces(PreTokenized& text, const Pattern& pattern, SplitBehavior behavior, bool invert) {
  std::vector<Range> pieces;
  std::vector<Range> matches;
  std::vector<Stretch> stretches;
  for (const Range& piece : text.pieces) {
    matches.clear();
    stretches.clear();
    const size_t size = piece.end - piece.begin;
    pattern.find_all(std::string_view(text.text.bytes).substr(piece.begin, size), matches);
    cover(matches, size, invert, stretches);
    rearrange(stretches, behavior);
    for (const Stretch& stretch : stretches) {
      pieces.push_back({piece.begin + stretch.range.begin, piece.begin + stretch.range.end});
    }
  }
  text.pieces = std::move(pieces);
}

}  // namespace vlmtrain::text

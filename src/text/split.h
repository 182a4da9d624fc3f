#pragma once

#include <string_view>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace vlmtrain::text {

/// What becomes of a match when a text is split at it; the names are those of tokenizer.json.
enum class SplitBehavior {
  kRemoved,             ///< is dropped
  kIsolated,            ///< is a piece
  kMergedWithPrevious,  ///< ends the piece before it
  kMergedWithNext,      ///< begins the piece after it
  kContiguous,          ///< matches that touch are one piece
};

/// Reads the value of a key `behavior`.
SplitBehavior parse_split_behavior(const JsonNode& node);

/// Splits each piece of `text` at the matches of `pattern`; with `invert`, at what it does not match.
void split_pieces(PreTokenized& text, const Pattern& pattern, SplitBehavior behavior, bool invert = false);

}  // namespace vlmtrain::text

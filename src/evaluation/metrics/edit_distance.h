#pragma once

#include <cstdint>
#include <string_view>

namespace vlmtrain::evaluation {

/// Returns the Levenshtein distance: the least number of insertions, deletions and substitutions of
/// one element that turn `a` into `b`. Elements are code points or other 32-bit ids.
///
/// O(a.size() · b.size()) time, O(b.size()) memory, without the common prefix and suffix.
int64_t compute_edit_distance(std::u32string_view a, std::u32string_view b);

}  // namespace vlmtrain::evaluation

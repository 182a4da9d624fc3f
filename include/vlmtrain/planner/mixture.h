#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vlmtrain::planner {

/// How many of `count` things each kind gets, in proportion to `shares` as far as whole numbers can: the method of the
/// largest remainder (Hamilton). Equal remainders go to the earlier kind. The sum is `count`.
/// REQUIRES: shares are not negative, and one is greater than 0.
std::vector<int64_t> apportion(std::span<const double> shares, int64_t count);

/// The kinds of that many things in an order in which each stretch has nearly the same shares: next comes the kind that
/// is furthest behind its share.
std::vector<size_t> interleave_evenly(std::span<const int64_t> counts);

}  // namespace vlmtrain::planner

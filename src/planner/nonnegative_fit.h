#pragma once

#include <cstdint>
#include <vector>

namespace vlmtrain::planner {

/// The non-negative coefficients x for which the sum of weight · (row · x − value)² over all rows is least: least
/// squares by coordinate descent (Franc, Hlaváč, Navara 2005), over columns scaled to a largest element of 1. Rows have
/// equal lengths. Columns of zeros get 0.
std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& rows,
                                              const std::vector<double>& values, const std::vector<double>& weights);

}  // namespace vlmtrain::planner

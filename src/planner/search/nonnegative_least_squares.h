#pragma once

#include <vector>

namespace vlmtrain::planner {

/// Returns the x ≥ 0 that minimizes the sum of weight · (row · x − value)² over all rows, by
/// coordinate descent (Franc, Hlaváč, Navara 2005). Columns are scaled to a maximum of 1. Elements
/// of x for columns of zeros are 0. REQUIRES: at least one row; all rows have equal length; one
/// value and one weight ≥ 0 per row.
std::vector<double> solve_nonnegative_least_squares(const std::vector<std::vector<double>>& rows,
                                                    const std::vector<double>& values,
                                                    const std::vector<double>& weights);

}  // namespace vlmtrain::planner

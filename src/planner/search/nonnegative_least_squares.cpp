#include "planner/search/nonnegative_least_squares.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

/// Maximum number of sweeps over all columns. Not tuned.
constexpr int64_t kMaxSweeps = 20'000;
/// Change of a coefficient, relative to the largest one, below which the iteration ends. Not tuned.
constexpr double kCoefficientTolerance = 1e-10;

}  // namespace

std::vector<double> solve_nonnegative_least_squares(const std::vector<std::vector<double>>& rows,
                                                    const std::vector<double>& values,
                                                    const std::vector<double>& weights) {
  VLMTRAIN_CHECK(!rows.empty() && rows.size() == values.size() && rows.size() == weights.size(),
                 "{} rows, {} values, {} weights", rows.size(), values.size(), weights.size());
  const size_t num_columns = rows.front().size();
  std::vector<double> scale(num_columns, 0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < num_columns; ++column)
      scale[column] = std::max(scale[column], std::abs(row[column]));
  }
  // Normal equations of the scaled columns: gradient = gram_matrix · x − rowsᵀ · weights · values,
  // for x = 0.
  std::vector<std::vector<double>> gram_matrix(num_columns, std::vector<double>(num_columns, 0));
  std::vector<double> gradient(num_columns, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t column = 0; column < num_columns; ++column) {
      if (scale[column] == 0) continue;
      const double element = weights[i] * rows[i][column] / scale[column];
      gradient[column] -= element * values[i];
      for (size_t other = 0; other < num_columns; ++other) {
        if (scale[other] > 0) gram_matrix[column][other] += element * rows[i][other] / scale[other];
      }
    }
  }
  std::vector<double> x(num_columns, 0);
  for (int64_t sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double max_change = 0;
    double max_coefficient = 0;
    for (size_t column = 0; column < num_columns; ++column) {
      if (gram_matrix[column][column] <= 0) continue;
      const double new_coefficient = std::max(0.0, x[column] - gradient[column] / gram_matrix[column][column]);
      const double step = new_coefficient - x[column];
      x[column] = new_coefficient;
      for (size_t other = 0; step != 0 && other < num_columns; ++other)
        gradient[other] += step * gram_matrix[other][column];
      max_change = std::max(max_change, std::abs(step));
      max_coefficient = std::max(max_coefficient, new_coefficient);
    }
    if (max_change <= kCoefficientTolerance * max_coefficient) break;
  }
  for (size_t column = 0; column < num_columns; ++column) {
    if (scale[column] > 0) x[column] /= scale[column];
  }
  return x;
}

}  // namespace vlmtrain::planner

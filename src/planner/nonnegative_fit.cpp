#include "planner/nonnegative_fit.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kMaxSweeps = 20'000;
constexpr double kTolerance = 1e-10;  // change of a coefficient, relative to the largest

}  // namespace

std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& rows,
                                              const std::vector<double>& values, const std::vector<double>& weights) {
  VLMTRAIN_CHECK(!rows.empty() && rows.size() == values.size() && rows.size() == weights.size(),
                 "{} rows, {} values, {} weights", rows.size(), values.size(), weights.size());
  const size_t num_columns = rows.front().size();
  std::vector<double> scale(num_columns, 0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < num_columns; ++column)
      scale[column] = std::max(scale[column], std::abs(row[column]));
  }
  // Normal equations: `gram` is symmetric, gradient = square · x − target.
  std::vector<std::vector<double>> gram(num_columns, std::vector<double>(num_columns, 0));
  std::vector<double> gradient(num_columns, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t column = 0; column < num_columns; ++column) {
      if (scale[column] == 0) continue;
      const double element = weights[i] * rows[i][column] / scale[column];
      gradient[column] -= element * values[i];
      for (size_t other = 0; other < num_columns; ++other) {
        if (scale[other] > 0) gram[column][other] += element * rows[i][other] / scale[other];
      }
    }
  }
  std::vector<double> x(num_columns, 0);
  for (int64_t sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double max_change = 0;
    double max_coefficient = 0;
    for (size_t column = 0; column < num_columns; ++column) {
      if (gram[column][column] <= 0) continue;
      const double updated = std::max(0.0, x[column] - gradient[column] / gram[column][column]);
      const double step = updated - x[column];
      x[column] = updated;
      for (size_t other = 0; step != 0 && other < num_columns; ++other) gradient[other] += step * gram[other][column];
      max_change = std::max(max_change, std::abs(step));
      max_coefficient = std::max(max_coefficient, updated);
    }
    if (max_change <= kTolerance * max_coefficient) break;
  }
  for (size_t column = 0; column < num_columns; ++column) {
    if (scale[column] > 0) x[column] /= scale[column];
  }
  return x;
}

}  // namespace vlmtrain::planner
